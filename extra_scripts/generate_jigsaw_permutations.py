#!/usr/bin/env python3
"""The same as `sslengine make permutations`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sslengine.command.front import run


def main(arguments: Sequence[str] | None = None) -> int:
    return run("make", ["permutations", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())
