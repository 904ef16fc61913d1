#!/usr/bin/env python3
"""The same as `run_distributed_engines.py engine_name=low_shot_test`."""

import sys

if __name__ == "__main__":
    # Inside the guard: child processes import this file too.
    from sslengine.launch.cli import main

    sys.exit(main([*sys.argv[1:], "engine_name=low_shot_test"]))
