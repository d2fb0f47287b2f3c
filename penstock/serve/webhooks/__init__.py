"""Webhooks: streams and views, sent to whoever has registered an address.

    routes --> registry --> courier, one for each webhook --> transport --> the receiver
                  |            |  reads the channel by cursor, splits what it gives (messages),
                  |            |  keeps the order of each key (lanes), tries again (retry)
                  +-- store ---+  one SQLite file: what is registered, what waits, what was given up

A message is durable before it is sent, under an id that it keeps. So whatever happens to this process or to the
receiver, each message is sent until it is answered or given up, always with the same id and the same bytes.
"""
