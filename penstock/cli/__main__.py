"""Run the command line with `python -m penstock.cli`."""

import sys

from penstock.cli.main import main

sys.exit(main())
