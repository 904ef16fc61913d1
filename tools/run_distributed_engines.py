#!/usr/bin/env python3
"""Run a config: see --help."""

import sys

if __name__ == "__main__":
    # Inside the guard: child processes import this file too.
    from sslengine.launch.cli import main

    sys.exit(main())
