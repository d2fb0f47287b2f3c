"""Command line of Penstock: parses arguments, calls the other packages, and prints results.

`main` defines the commands and runs most of them; `arguments` is the parser, which suggests the nearest name for a
mistyped command or option. `changing` contains `penstock plan` and `penstock purge`, `keys` contains `penstock keys`,
`newapp` contains the files that `penstock new` writes, and `doctor` checks the machine. `console` prints every line for
people in one format.

Code that works on an app's data belongs in `runtime` or in a tier, where it can be tested without a command line. No
other package imports this one.
"""
