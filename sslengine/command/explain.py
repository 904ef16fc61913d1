"""Show how a config's TRANSFORMS run: what is fused, what falls back, and its cost.

    sslengine explain config=quickstart/simclr
    sslengine explain config=quickstart/dino --picture views.png
    sslengine explain config=pretrain/swav/swav_64gpu_resnet50 \\
        config.DATA.AUGMENT_BACKEND=pil --count 64

Times are CPU time of one thread, over images of the config's data; if these cannot be read, over
generated JPEGs of 500 x 375 pixels, with a note. The picture has a row for each image: the image as
read, then its views as the network gets them, before normalisation.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from sslengine.command.arguments import (
    CONFIG_DIR,
    JSON,
    TRUST_CONFIG,
    Argument,
    build_parser,
    expect_writable,
)

ARGUMENTS = (
    Argument("overrides", "config=NAME and changes", metavar="KEY=VALUE", nargs="+"),
    CONFIG_DIR,
    Argument("--split", choices=("TRAIN", "TEST"), default="TRAIN"),
    Argument("--count", "images to time", int, "N", 32, least=1),
    Argument("--picture", "write the views here", Path, "FILE"),
    Argument("--images", "rows of the picture", int, "M", 6, least=1),
    Argument("--views", "of each image in the picture (at least 8)", int, "N", least=1),
    TRUST_CONFIG,
    JSON,
)


def make_parser() -> argparse.ArgumentParser:
    return build_parser("explain", __doc__, ARGUMENTS)


def main(arguments: Sequence[str] | None = None) -> int:
    given = make_parser().parse_intermixed_args(arguments)
    if given.picture:
        expect_writable(given.picture, "--picture")
    from sslengine.command.explained_views import run

    return run(given)
