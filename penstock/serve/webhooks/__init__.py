"""Webhooks: streams and views, sent to registered addresses.

    routes --> registry --> delivery worker, one for each webhook --> transport --> the receiver
                  |            |  reads the channel by cursor, splits deliveries (messages),
                  |            |  keeps the order of each key (lanes), retries (retry)
                  +-- store ---+  one SQLite file: registrations, waiting messages, dead letters

A message is durable before it is sent, and keeps its id. Whatever happens to this process or to the receiver, Penstock
sends each message until the receiver accepts it or Penstock gives up. The id and the body are the same each time.
"""
