"""Invented feeds for the demos that are fed by one stream: drawdown, traffic, logins, learning.

A play is a pure function of a seed, a start time and a rate: `prices`, `roads`, `visitors`, `parcels`. `plays` lists
them, `__main__` sends one to a running app when the time of each message has come, `demo` runs an app and its play
together.
"""
