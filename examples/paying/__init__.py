"""What is beside the app in `examples/royalties.py`: sales, a payment service that fails, and the payer between them.

`bank` is the service, `payer` the program that pays each payment once, `sales` invents what is sold. `__main__` runs
the three of them against a running app, and `demo` the app as well.
"""
