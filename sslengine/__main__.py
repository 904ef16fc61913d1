"""`python -m sslengine config=...` is the same as tools/run_distributed_engines.py."""

import sys

from sslengine.launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
