"""Sources that ask a server over HTTP: server-sent events, lines, and a document that is asked for again and again.
They share how to ask (`client`), what came back (`answer`), and where to go on (`positions`)."""
