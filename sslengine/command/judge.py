"""Score a run's frozen features on labelled images: nearest neighbours and a linear probe.

    sslengine judge runs/birds --train ~/birds/train --val ~/birds/val
    sslengine judge runs/birds                       the run's own images, if it held some out
    sslengine judge runs/birds --suite frozen        more protocols
    sslengine judge runs/birds --suite full          also fine-tuned with all labels: hours

The same trunk untrained and raw pixels are scored too: they are what training has to beat. The
scores are printed, and kept in evaluation.json in the run's folder. Images are resized, and cropped
in the centre. Other protocols: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sslengine import catalog
from sslengine.command.embed import ALL_OF_IT
from sslengine.command.text import overrides, typed
from sslengine.config.run_folder import open_run
from sslengine.config.sections import read
from sslengine.data.options import DataOptions
from sslengine.errors import ConfigError
from sslengine.evaluation.options import PROTOCOLS
from sslengine.launch.cli import start
from sslengine.launch.widths import settle_widths
from sslengine.registry import import_dotted

assert catalog  # importing it declares all names

NEIGHBOURS = [1, 20]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslengine judge", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the folder of a run")
    add("--train", metavar="DATA", help="labelled images, as for `sslengine train`")
    add("--val", metavar="DATA", help="those to score on")
    add(
        "--suite",
        choices=("quick", "frozen", "full"),
        default="quick",
        help="frozen: also few-shot, SVM, low-shot SVM and retrieval (EVALUATE.PROTOCOLS); full: "
        "then all layers are trained with labels (docs/benchmarks.md)",
    )
    add("--network", choices=("auto", "student", "teacher"), default="auto")
    add("--set", action="append", default=[], dest="values", metavar="KEY=VALUE",
        help="any key of the config")  # fmt: skip
    add("--trust-config", action="store_true", help="allow config.yaml to run code")
    return parser


def main(arguments: Sequence[str]) -> int:
    given = make_parser().parse_args(arguments)
    if (given.train is None) != (given.val is None):
        raise ConfigError("--train, --val: give both, or none of them.")
    values = _images(given)
    trusted = given.trust_config
    opened = open_run(given.run, overrides(values), trusted=trusted, judged=True)
    data = read(opened.config, DataOptions)
    entries, _ = import_dotted("sslengine.data.judged_view:choose")(data)
    images = dict(values)
    values |= _protocol(given, entries)
    if given.suite != "quick":
        values["EVALUATE.PROTOCOLS"] = list(PROTOCOLS)
    if given.val is not None:
        decoded = {f"DATA.TEST.{key}": getattr(data.TRAIN, key) for key in DECODED_BY}
        values, images = {**values, **decoded}, {**images, **decoded}
    run = open_run(
        given.run, ["engine_name=evaluate", *overrides(values), *typed(given.values)],
        trusted=trusted, judged=True,
    )  # fmt: skip
    runs = [run]
    if given.suite == "full":
        runs.append(import_dotted("sslengine.command.fine_tuned:run_of")(given, images, entries))
    return start([settle_widths(each) for each in runs])


# Both sets are decoded as the images that the network was trained on.
DECODED_BY = ("IMAGE_MODE", "PIXEL_RANGE", "IMAGE_PAGE", "EXIF_ROTATION")


def _images(given: argparse.Namespace) -> dict[str, Any]:
    values: dict[str, Any] = {f"DATA.{split}.LABEL_TYPE": "standard" for split in ("TRAIN", "TEST")}
    if given.train is None:
        return values
    for split, path in (("TRAIN", given.train), ("TEST", given.val)):
        found = import_dotted("sslengine.command.images:look")(path)
        if not found.has_classes:
            raise ConfigError(
                f"{path}: judging needs images of several classes: a folder for each, or a column "
                f"of labels."
            )
        values |= found.keys(split, labels=True)
    return {**values, **ALL_OF_IT, "DATA.TEST.DATA_LIMIT": -1, "DATA.TEST.DATASET_NAMES": [],
            "DATA.TEST.LABEL_PATHS": []}  # fmt: skip


def _protocol(given: argparse.Namespace, entries: list[dict[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {
        "CHECKPOINT.DIR": str(given.run),
        "MODEL.FEATURE_EVAL_SETTINGS.EVAL_MODE_ON": True,
        "MODEL.FEATURE_EVAL_SETTINGS.FREEZE_TRUNK_ONLY": True,
        "MODEL.FEATURE_EVAL_SETTINGS.EXTRACT_TRUNK_FEATURES_ONLY": True,
        "MODEL.BASE_MODEL_NAME": "multi_input_output_model",
        "MODEL.MULTI_INPUT_HEAD_MAPPING": [],
        "MODEL.TEMP_FROZEN_PARAMS_ITER_MAP": [],
        "MODEL.WEIGHTS_INIT.NETWORK": given.network,
        "TRAINER.TRAIN_STEP_NAME": "standard_train_step",
        "LOSS.name": "CrossEntropyLoss",
        "NEAREST_NEIGHBOR.TOPK": NEIGHBOURS,
        "NEAREST_NEIGHBOR.L2_NORM_FEATS": True,
    }
    for split in ("TRAIN", "TEST"):
        values |= {
            f"DATA.{split}.TRANSFORMS": entries,
            f"DATA.{split}.COLLATE_FUNCTION": "default_collate",
            f"DATA.{split}.COLLATE_FUNCTION_PARAMS": {},
            f"DATA.{split}.INPUT_KEY_NAMES": ["data"],
            f"DATA.{split}.TARGET_KEY_NAMES": ["label"],
            f"DATA.{split}.DROP_LAST": False,
        }
    return values
