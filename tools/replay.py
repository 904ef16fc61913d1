#!/usr/bin/env python3
"""A run stopped at a value that is not finite: make its last steps again and name the place.

    python tools/replay.py runs/mine

The steps since the newest checkpoint are made as they were, with every module's output and every
gradient checked. The run's own files stay as they are. A config that lies in a folder may be
anybody's: if the run's config.yaml would bring Python code, other files or values of the
environment, this asks for --trust-config.
"""

import argparse
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the run")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for a run")
    parser.add_argument(
        "--trust-config", action="store_true", help="let config.yaml bring code: it is your own"
    )
    given = parser.parse_intermixed_args(arguments)

    from sslengine import catalog
    from sslengine.config.compose import sweep
    from sslengine.config.run_folder import open_run
    from sslengine.errors import SSLEngineError
    from sslengine.launch.cli import start

    assert catalog  # importing it declares all names
    if given.trust_config and "" not in sys.path:
        sys.path.insert(0, "")  # plugins in the current folder, which may be the run's
    what = ["engine_name=replay", f"config.CHECKPOINT.DIR='{given.folder}'", *given.overrides]
    try:
        runs = [open_run(given.folder, each, trusted=given.trust_config) for each in sweep(what)]
    except SSLEngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return start(runs)


if __name__ == "__main__":
    sys.exit(main())
