"""Runs the command line: `python -m minidynamo`."""

import sys

from minidynamo.observe.cli import main

if __name__ == "__main__":
    sys.exit(main())
