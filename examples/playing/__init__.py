"""Simulated feeds for the demos that read one stream: drawdown, traffic, logins, learning.

`prices`, `roads`, `visitors` and `parcels` contain one play each: a pure function of a seed, a start time and a rate.
`plays` lists them, `__main__` sends the messages of one play to a running app when they are due, and `demo` runs an app
together with its play.
"""
