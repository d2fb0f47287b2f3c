"""A simulation of the meetup site's live RSVP feed: seeded, endless, and served over a local WebSocket.

`world` generates groups and their topics, `play` generates messages with timestamps, and `server` sends each message
when it is due. To run only the feed, use `python -m examples.feed --rate 50 --seed 1`.
"""
