"""`python -m sslengine` is the command `sslengine`."""

import sys

from sslengine.command.front import main

if __name__ == "__main__":
    sys.exit(main())
