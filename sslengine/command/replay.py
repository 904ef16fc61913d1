"""After a run stopped at a non-finite value: repeat its last steps and name the module.

    sslengine replay runs/mine

It repeats the steps since the newest checkpoint and checks every module's output and gradient. The
run's own files do not change. A folder that you did not train may come from anyone: if its
config.yaml names Python code, other files or environment variables, --trust-config is needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from sslengine import catalog
from sslengine.config.compose import overrides, sweep
from sslengine.config.run_folder import open_run
from sslengine.launch.cli import start

assert catalog  # importing it declares all names


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslengine replay",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="the run's folder")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for a run")
    parser.add_argument("--trust-config", action="store_true", help="allow config.yaml to run code")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = make_parser().parse_intermixed_args(arguments)
    folder = overrides({"CHECKPOINT.DIR": str(given.folder)})
    what = ["engine_name=replay", *folder, *given.overrides]
    return start([open_run(given.folder, each, trusted=given.trust_config) for each in sweep(what)])
