"""Check for every YAML file in some folders whether sslengine can run it, and if not, why.

    sslengine check configs                   # names, keys, values; models built
    sslengine check ~/vissl/configs --train   # two steps of each, on this CPU
    sslengine check DIR --train --set config.MODEL.TRUNK.RESNETS.DEPTH=18

Each file has a role. A run names its data and its model: it is checked alone. An overlay sets
several sections and a part sets one (`+config/...`): they are merged onto the nearest runs that are
right, or lack their data source alone, and are right if one of these combinations is. A file
without `config:` belongs to another program; it is listed and skipped.

Each verdict is printed at once. Without --train nothing is computed: models are built on the meta
device. With it each run gets one process, the CPU, fp32, generated images, small
crops if it works with them, and a batch of 4; the values of --set take precedence.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from sslengine.command import documents
from sslengine.command.counts import expect_counts
from sslengine.errors import ConfigError
from sslengine.registry import import_dotted


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslengine check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="DIR", help="folders, or files")
    parser.add_argument("--train", action="store_true", help="train two steps of each")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override of every run"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="number of parallel checks"
    )
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds per check")
    parser.add_argument("--all", action="store_true", help="print files without problems too")
    parser.add_argument(
        "--trust-config", action="store_true", help="let the config.yaml of a run run code"
    )
    documents.add_json(parser, "print all verdicts as one JSON document")
    return parser


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser()
    options = parser.parse_args(arguments)
    for path in options.paths:
        if not path.exists():
            parser.error(f"there is no folder or file {path}")
    expect_counts(options, jobs=1)
    if not options.timeout > 0:
        raise ConfigError(f"--timeout: expected more than 0 seconds, got {options.timeout:g}.")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    run = import_dotted("sslengine.command.config_verdicts:run")  # imports torch
    status: int = run(options)
    return status
