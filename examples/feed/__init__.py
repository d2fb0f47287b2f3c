"""A stand-in for the meetup site's live feed of RSVPs: seeded, endless, and served over a WebSocket on this machine.

`world` invents who meets where and about what, `play` turns that into messages with times, `server` sends them when
their time has come. By itself: `python -m examples.feed --rate 50 --seed 1`.
"""
