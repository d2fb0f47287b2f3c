"""Sources that pull over HTTP: server-sent events, lines, and polled documents.

They share the client (`client`), the response (`response`) and the positions (`positions`).
"""
