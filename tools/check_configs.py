#!/usr/bin/env python3
"""The same as `sslengine check`."""

import sys

if __name__ == "__main__":
    # Inside the guard: child processes import this file too.
    from sslengine.command.front import run

    sys.exit(run("check", sys.argv[1:]))
