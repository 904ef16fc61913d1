#!/usr/bin/env python3
"""A run stopped at a value that is not finite: make its last steps again and name the place.

    python tools/replay.py runs/mine

The steps since the newest checkpoint are made as they were, with every module's output and every
gradient checked. The run's own files stay as they are. If its config.yaml names Python code, this
asks for --trust-config: a config that you type yourself may bring code, one that lies in a folder
may be anybody's.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_DOTTED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # module:Name


def code_named_in(tree: Any, key: str = "config") -> Iterator[str]:
    """`KEY: what`, for each plugin and each dotted path of a config."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            if key == "config" and name == "PLUGINS":
                yield from (f"config.PLUGINS: {each}" for each in value or [])
            else:
                yield from code_named_in(value, f"{key}.{name}")
                yield from code_named_in(name, key)
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from code_named_in(value, f"{key}.{index}")
    elif isinstance(tree, str) and _DOTTED.fullmatch(tree):
        yield f"{key}: {tree}"


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
