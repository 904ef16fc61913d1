"""Apply a trained run to images: features, classes, the nearest training images.

    sslengine predict runs/mine cat.png dog.png
    sslengine predict runs/mine cat.png --json > cat.json
    sslengine predict runs/mine cat.png --picture nearest.png

The weights are those of the run's newest checkpoint. Classes are given if the run trained a
classifier. The features of the training images are computed once and kept in the run's folder.

An image that cannot be read, or has other bands than the run takes, is named on stderr; the others
have their results, and the exit status is not 0.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sslengine.command import documents
from sslengine.command.counts import expect_counts
from sslengine.command.new_file import expect_writable
from sslengine.command.run_there import expect_run
from sslengine.config.compose import typed
from sslengine.config.options import DEVICES
from sslengine.errors import SSLEngineError
from sslengine.launch.cli import ended_by
from sslengine.progress import progress
from sslengine.registry import import_dotted
from sslengine.screen import say


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslengine predict",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="the run's folder")
    parser.add_argument("images", nargs="+", metavar="IMAGE")
    parser.add_argument("--nearest", type=int, default=5, metavar="N", help="neighbours to find")
    documents.add_json(parser, "print all results as one JSON document")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="draw the images and their neighbours"
    )
    parser.add_argument(
        "--network",
        choices=("auto", "student", "teacher"),
        default="auto",
        help="of a method with a teacher; auto: the one that the method's authors evaluate",
    )
    parser.add_argument("--device", choices=DEVICES, default="auto")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="a value of the run's config, as DATA.TRAIN.DATA_PATHS=[/images]; repeatable",
    )  # fmt: skip
    parser.add_argument("--trust-config", action="store_true", help="allow config.yaml to run code")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = make_parser().parse_args(arguments)
    expect_counts(given, nearest=0)
    expect_run(given.folder)
    if given.picture:
        expect_writable(given.picture, "--picture")
    with documents.apart(given.json):
        predictor = import_dotted("sslengine.predictor:Predictor")(
            given.folder,
            nearest=given.nearest,
            device=given.device,
            overrides=typed(given.overrides),
            trust_config=given.trust_config,
            network=given.network,
        )
        found, unreadable, status = _predictions(
            predictor, [str(Path(each)) for each in given.images]
        )
    if not found:
        return status
    if given.picture:
        import_dotted("sslengine.predictor.picture:save")(given.picture, predictor, found)
    form = import_dotted(f"sslengine.predictor.report:as_{'json' if given.json else 'text'}")
    if given.json:
        documents.show({**form(predictor, found), "unreadable": unreadable})
    else:
        say(form(predictor, found), sys.stdout)
    return status


def _predictions(predictor: Any, images: Sequence[str]) -> tuple[dict[str, Any], list[str], int]:
    """By the images' names; names without one, which stderr has; the worst exit status of these."""
    found: dict[str, Any] = {}
    unreadable: list[str] = []
    worst = 0
    with progress("predictions", len(images)) as step:
        for name in images:
            try:
                decoded = predictor.read(name)
            except SSLEngineError as error:
                worst = max(worst, ended_by(error))
                unreadable.append(name)
            else:
                found[name] = predictor.predict(decoded)
            step(1)
    return found, unreadable, worst
