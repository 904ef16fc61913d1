"""Write a run's network into a folder that other libraries read.

    sslengine export runs/birds birds-vit/                    timm, transformers, lightly
    sslengine export runs/birds birds-onnx/ --to onnx
    sslengine export vissl.torch resnet50/ --config pretrain/simclr/simclr_64gpu_resnet50

The export proves itself where the target library is installed; see docs/export.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sslengine.command import arguments as args
from sslengine.command.arguments import Argument
from sslengine.errors import ConfigError, readable
from sslengine.export import FORMATS, export

ARGUMENTS = (
    replace(args.RUN, help="the folder of a run, or one of its checkpoints"),
    Argument("--config", "RUN is a file of weights, of this network", metavar="NAME", default=""),
    args.VALUES,
    Argument("out", "a new folder", Path, "DIR"),
    Argument("--to", "see above; default: timm", metavar="FORMAT", default="timm",
             listed="formats"),
    args.NETWORK,
    Argument("--license", "of the weights, which are yours", metavar="NAME", default=""),
    args.TRUST_CONFIG,
    Argument("--trust-pickle", "allow a file of weights to run code", bool),
    replace(args.JSON, help="print the folder and its manifest as one JSON document"),
)  # fmt: skip
__doc__ = "\n".join([f"{__doc__}\nFormats:", *map("  {0[0]:12} {0[1]}".format, FORMATS.items())])


def main(arguments: Sequence[str]) -> int:
    given = args.make_parser(__name__).parse_args(arguments)
    if given.trust_pickle and not given.config:
        raise ConfigError("--trust-pickle: it is for a file of weights, with --config.")
    if given.config:
        args.expect_weights(given.run, "RUN")
    elif not given.run.exists() or (given.run / "config.yaml").is_file():
        args.expect_run(given.run)
    trusted = ["config.MODEL.WEIGHTS_INIT.TRUST_PICKLE=true"] if given.trust_pickle else []
    with args.keep_apart(given.json):
        made = export(
            given.run, given.out, given.to, network=given.network, license=given.license,
            trust_config=given.trust_config, overrides=[*given.values, *trusted],
            config=given.config,
        )  # fmt: skip
    if given.json:
        manifest = json.loads((made / "manifest.json").read_text(encoding="utf-8"))
        args.print_document({"folder": str(made), **manifest})
        return 0
    print(readable(f"{made}: {made / 'README.md'} says how it is read"))
    return 0
