#!/usr/bin/env python3
"""Run what a config describes, on this machine: see --help."""

import sys

if __name__ == "__main__":
    # Inside the guard: processes that this one starts import this file too.
    from sslengine.launch.cli import main

    sys.exit(main())
