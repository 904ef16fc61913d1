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

from sslengine.command import documents
from sslengine.command.counts import expect_counts
from sslengine.command.new_file import expect_writable
from sslengine.registry import import_dotted


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslengine explain",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="config=NAME and changes")
    parser.add_argument("--config-dir", action="append", default=[], metavar="DIR")
    parser.add_argument("--split", choices=("TRAIN", "TEST"), default="TRAIN")
    parser.add_argument("--count", type=int, default=32, metavar="N", help="images to time")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the views here")
    parser.add_argument("--images", type=int, default=6, metavar="M", help="rows of the picture")
    parser.add_argument(
        "--views", type=int, metavar="N", help="of each image in the picture (at least 8)"
    )
    parser.add_argument("--trust-config", action="store_true", help="allow config.yaml to run code")
    documents.add_json(parser)
    return parser


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    given = make_parser().parse_intermixed_args(arguments)
    expect_counts(given, count=1, images=1, views=1)
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    if given.picture:
        expect_writable(given.picture, "--picture")
    run = import_dotted("sslengine.command.explained_views:run")  # imports torch
    status: int = run(given)
    return status
