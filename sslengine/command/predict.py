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

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sslengine.command import arguments as args
from sslengine.command.arguments import Argument
from sslengine.config.compose import typed
from sslengine.errors import SSLEngineError
from sslengine.launch.cli import ended_by
from sslengine.progress import progress
from sslengine.screen import say

ARGUMENTS = (
    replace(args.RUN, flag="folder", metavar=None, help="the run's folder"),
    Argument("images", metavar="IMAGE", nargs="+"),
    Argument("--nearest", "neighbours to find", int, "N", 5, least=0),
    replace(args.JSON, help="print all results as one JSON document"),
    Argument("--picture", "draw the images and their neighbours", Path, "FILE"),
    replace(args.NETWORK, help="of a method with a teacher; auto: what its authors evaluate"),
    args.DEVICE,
    replace(args.VALUES, parameter="overrides", help="a value of the run's config, as "
            "DATA.TRAIN.DATA_PATHS=[/images]; repeatable"),
    args.TRUST_CONFIG,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    given = args.make_parser(__name__).parse_args(arguments)
    args.expect_run(given.folder)
    if given.picture:
        args.expect_writable(given.picture, "--picture")
    from sslengine.predictor import Predictor
    from sslengine.predictor.report import as_json, as_text, save

    with args.keep_apart(given.json):
        predictor = Predictor(
            given.folder,
            nearest=given.nearest,
            device=given.device,
            overrides=typed(given.overrides),
            trust_config=given.trust_config,
            network=given.network,
        )
        found, unreadable, status = _predict(predictor, [str(Path(each)) for each in given.images])
    if not found:
        return status
    if given.picture:
        save(given.picture, predictor, found)
    if given.json:
        args.print_document({**as_json(predictor, found), "unreadable": unreadable})
    else:
        say(as_text(predictor, found), sys.stdout)
    return status


def _predict(predictor: Any, images: Sequence[str]) -> tuple[dict[str, Any], list[str], int]:
    """Return predictions by the images' names; the names of unreadable images, which stderr has;
    and the worst exit status of these."""
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
