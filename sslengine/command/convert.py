"""Convert weights between sslengine, VISSL, torchvision and timm, and verify the outputs.

    # A run of sslengine or VISSL into torchvision's ResNet-50, without its classifier
    sslengine convert config=pretrain/simclr/simclr_8gpu_resnet50 \\
        --from checkpoint.torch --to torchvision:resnet50 --out resnet50.pth

    # timm's weights into a file that VISSL reads (and config.MODEL.WEIGHTS_INIT here)
    sslengine convert config=pretrain/dino/dino_16gpu_vits16 \\
        --from deit_small.pth --made-by timm:vit_small_patch16_224 --skip head. \\
        --to vissl --out deit_small.torch

The config describes the model, the content of the file says whose it is (docs/weights.md). Every
tensor of the network must be mapped: one that cannot be is an error that names it, and --skip
omits it. Before anything is written the converted weights are loaded into the
target model, and its outputs must equal those of the source model. For a folder that timm,
transformers and others open: sslengine export.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from sslengine.command.counts import expect_counts
from sslengine.command.new_file import expect_writable
from sslengine.command.weights_there import expect_weights
from sslengine.errors import ConfigError, DoesNotFitError, readable
from sslengine.registry import import_dotted

OWN = ("vissl", "sslengine")
LIBRARIES = ("torchvision", "timm")
FORMS = (*OWN, *(f"{each}:MODEL" for each in LIBRARIES))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslengine convert", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("config", nargs="+", metavar="KEY=VALUE", help="config=..., as for a run")
    add("--from", dest="source", type=Path, required=True, metavar="FILE")
    add("--out", dest="file", type=Path, required=True, metavar="FILE")
    # Not the formats of `export`, which are completed for --to.
    add("--to", required=True, metavar="FORM", help=", ".join(FORMS))
    add("--made-by", metavar="FORM", help="compare with the original model as well")
    add("--network", choices=("auto", "student", "teacher"), default="auto",
        help="of a method with a teacher; auto: what its authors evaluate")  # fmt: skip
    add("--skip", action="append", default=[], help="skip tensors whose name contains this")
    add("--config-dir", action="append", default=[], metavar="DIR")
    add("--image-size", type=int, default=224,
        help="side of the images on which outputs are compared")  # fmt: skip
    add("--trust-config", action="store_true", help="allow a run's config.yaml to run code")
    add("--trust-pickle", action="store_true", help="allow the weights file to run code")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = make_parser().parse_intermixed_args(arguments)
    for form in (given.to, *([given.made_by] if given.made_by else [])):
        if form not in OWN and form.partition(":")[0] not in LIBRARIES:
            raise ConfigError(f"expected one of {', '.join(FORMS)}; got {form}")
    if given.file.suffix == ".safetensors" and given.to in OWN:
        raise ConfigError(
            f"--out: a file of {given.to} has parts inside parts, which safetensors cannot hold."
        )
    expect_writable(given.file, "--out")
    expect_counts(given, image_size=1)
    expect_weights(given.source, "--from")
    convert = import_dotted("sslengine.command.converted_weights:convert")
    try:
        print(readable("\n".join(convert(given)), but="\n"))
    except DoesNotFitError as error:
        advice = "--skip NAME leaves out what is of no part of the network, as a classifier is."
        raise DoesNotFitError(f"{error}\n  {advice}") from error
    return 0
