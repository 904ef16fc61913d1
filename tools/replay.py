#!/usr/bin/env python3
"""A run stopped at a value that is not finite: make its last steps again and name the place.

    python tools/replay.py runs/mine

The steps since the newest checkpoint are made as they were, with every module's output and every
gradient checked. The run's own files stay as they are. If its config.yaml names Python code, this
asks for --trust-config: a config that you type yourself may bring code, one that lies in a folder
may be anybody's.
"""

import argparse
import sys
from pathlib import Path

import yaml

from sslengine.config.code import code_named_in

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the run")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for a run")
    parser.add_argument(
        "--trust-config", action="store_true", help="import the code that config.yaml names"
    )
    given = parser.parse_intermixed_args()
    if not (given.folder / "config.yaml").is_file():
        parser.error(f"{given.folder} has no config.yaml: it is not the folder of a run")

    tree = yaml.safe_load((given.folder / "config.yaml").read_text(encoding="utf-8"))
    named = list(code_named_in((tree or {}).get("config")))
    if named and not given.trust_config:
        parser.error(
            f"{given.folder / 'config.yaml'} names code, which a replay would import and run:\n  "
            + "\n  ".join(named)
            + "\nIf the run is yours: --trust-config"
        )

    from sslengine.launch.cli import main

    what = ["config=config", "engine_name=replay", f"config.CHECKPOINT.DIR='{given.folder}'"]
    sys.exit(main([*what, *given.overrides, "--config-dir", str(given.folder)]))
