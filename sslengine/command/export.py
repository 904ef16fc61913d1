"""Write a run's network into a folder that other libraries read.

    sslengine export runs/birds birds-vit/                    timm, transformers, lightly
    sslengine export runs/birds birds-onnx/ --to onnx
    sslengine export vissl.torch resnet50/ --config pretrain/simclr/simclr_64gpu_resnet50

The export proves itself where the target library is installed; see docs/export.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sslengine.command.arguments import (
    JSON,
    NETWORK,
    RUN,
    TRUST_CONFIG,
    VALUES,
    Argument,
    build_parser,
    expect_run,
    expect_weights,
    keep_apart,
    print_document,
)
from sslengine.errors import ConfigError, readable
from sslengine.export import FORMATS, export

ARGUMENTS = (
    replace(RUN, help="the folder of a run, or one of its checkpoints"),
    Argument("--config", "RUN is a file of weights, of this network", metavar="NAME", default=""),
    VALUES,
    Argument("out", "a new folder", Path, "DIR"),
    Argument("--to", "see above; default: timm", metavar="FORMAT", default="timm",
             listed="formats"),
    NETWORK,
    Argument("--license", "of the weights, which are yours", metavar="NAME", default=""),
    TRUST_CONFIG,
    Argument("--trust-pickle", "allow a file of weights to run code", bool),
    replace(JSON, help="print the folder and its manifest as one JSON document"),
)  # fmt: skip


def make_parser() -> argparse.ArgumentParser:
    formats = "\n".join(f"  {name:12} {what}" for name, what in FORMATS.items())
    return build_parser("export", f"{__doc__}\nFormats:\n{formats}", ARGUMENTS)


def main(arguments: Sequence[str]) -> int:
    given = make_parser().parse_args(arguments)
    if given.trust_pickle and not given.config:
        raise ConfigError("--trust-pickle: it is for a file of weights, with --config.")
    if given.config:
        expect_weights(given.run, "RUN")
    elif not given.run.exists() or (given.run / "config.yaml").is_file():
        expect_run(given.run)
    trusted = ["config.MODEL.WEIGHTS_INIT.TRUST_PICKLE=true"] if given.trust_pickle else []
    with keep_apart(given.json):
        made = export(
            given.run, given.out, given.to, network=given.network, license=given.license,
            trust_config=given.trust_config, overrides=[*given.values, *trusted],
            config=given.config,
        )  # fmt: skip
    if given.json:
        manifest = json.loads((made / "manifest.json").read_text(encoding="utf-8"))
        print_document({"folder": str(made), **manifest})
        return 0
    print(readable(f"{made}: {made / 'README.md'} says how it is read"))
    return 0
