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
from pathlib import Path

from sslengine.command import documents
from sslengine.command.run_there import expect_run
from sslengine.command.weights_there import expect_weights
from sslengine.errors import ConfigError, readable
from sslengine.export import FORMATS, export


def make_parser() -> argparse.ArgumentParser:
    formats = "\n".join(f"  {name:12} {what}" for name, what in FORMATS.items())
    parser = argparse.ArgumentParser(
        prog="sslengine export", description=f"{__doc__}\nFormats:\n{formats}", allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the folder of a run, or one of its checkpoints")
    add("--config", default="", metavar="NAME", help="RUN is a file of weights, of this network")
    add("--set", action="append", default=[], dest="values", metavar="KEY=VALUE",
        help="any key of the config")  # fmt: skip
    add("out", type=Path, metavar="DIR", help="a new folder")
    add("--to", default="timm", metavar="FORMAT", help="see above; default: timm")
    add("--network", choices=("auto", "student", "teacher"), default="auto")
    add("--license", default="", metavar="NAME", help="of the weights, which are yours")
    add("--trust-config", action="store_true", help="allow config.yaml to run code")
    add("--trust-pickle", action="store_true", help="allow a file of weights to run code")
    documents.add_json(parser, "print the folder and its manifest as one JSON document")
    return parser


def main(arguments: Sequence[str]) -> int:
    given = make_parser().parse_args(arguments)
    if given.trust_pickle and not given.config:
        raise ConfigError("--trust-pickle: it is for a file of weights, with --config.")
    if given.config:
        expect_weights(given.run, "RUN")
    elif not given.run.exists() or (given.run / "config.yaml").is_file():
        expect_run(given.run)
    trusted = ["config.MODEL.WEIGHTS_INIT.TRUST_PICKLE=true"] if given.trust_pickle else []
    with documents.apart(given.json):
        made = export(
            given.run, given.out, given.to, network=given.network, license=given.license,
            trust_config=given.trust_config, overrides=[*given.values, *trusted],
            config=given.config,
        )  # fmt: skip
    if given.json:
        manifest = json.loads((made / "manifest.json").read_text(encoding="utf-8"))
        documents.show({"folder": str(made), **manifest})
        return 0
    print(readable(f"{made}: {made / 'README.md'} says how it is read"))
    return 0
