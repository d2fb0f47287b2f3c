"""Serve tier: streams and views as their readers see them, over any transport.

Work for a single reader, such as building a page, runs in a few separate threads (`channels.threads`), so it cannot
delay other readers. `held` limits the number of bytes held for clients that have not received them yet.
"""
