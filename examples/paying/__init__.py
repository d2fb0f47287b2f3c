"""The programs that run next to the app in `examples/royalties.py`.

`bank` is an unreliable payment service, `payer` makes each payment exactly once, and `sales` generates sales.
`__main__` runs all three with an app that is already running, and `demo` also runs the app.
"""
