#!/usr/bin/env python3
"""A run stopped at a value that is not finite: make its last steps again and name the place.

    python tools/replay.py runs/mine

The steps since the newest checkpoint are made as they were, with every module's output and every
gradient checked. The run's own files stay as they are.
"""

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the run")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for a run")
    given = parser.parse_args()
    if not (given.folder / "config.yaml").is_file():
        parser.error(f"{given.folder} has no config.yaml: it is not the folder of a run")

    from sslengine.launch.cli import main

    what = ["config=config", "engine_name=replay", f"config.CHECKPOINT.DIR='{given.folder}'"]
    sys.exit(main([*what, *given.overrides, "--config-dir", str(given.folder)]))
