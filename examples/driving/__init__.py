"""A simulated fleet for the demo in `examples/fleet.py`.

`play` generates routes and fixes from a seed, `__main__` sends each of them to a running app when it is due, and `demo`
runs the app together with the fleet.
"""
