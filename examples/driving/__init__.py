"""An invented fleet for the demo in `examples/fleet.py`.

`play` makes routes and fixes out of a seed, `__main__` sends them to a running app when their time has come, `demo`
runs the app and the fleet together.
"""
