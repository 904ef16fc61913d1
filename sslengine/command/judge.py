"""Score a run's frozen features on labelled images: nearest neighbours and a linear probe.

    sslengine judge runs/birds --train ~/birds/train --val ~/birds/val
    sslengine judge runs/birds                       the run's own images
    sslengine judge runs/birds --suite frozen        more protocols, sweeps of classifiers
    sslengine judge runs/birds --train a.csv --val b.csv --label-column species
    sslengine judge runs/birds --suite full          also corrupted images, and fine-tuned: hours
    sslengine judge timm/resnet50 --train ~/birds/train --val ~/birds/val
    sslengine judge --features train.npy val.npy --labels train_labels.npy val_labels.npy

The same trunk untrained and raw pixels are scored too: they are what training has to beat. The
scores are printed, and kept in evaluation.json in the run's folder. Images are resized, and cropped
in the centre. Without labels, or of a single class, metrics that need no labels are computed.

In place of a run, timm/NAME and torchvision/NAME are a library's network with its weights, which
are downloaded once (of timm as .safetensors), or with those of --weights FILE. Scores and features
are kept in --out FOLDER, by default runs/NAME-judged.

--features judges what other programs computed: .npy, .npz, .parquet, .csv, .tsv or .pt of the
training and test images; or folders of features that this engine has kept. Of one file a fifth of
the rows are test rows. More: docs/judging/.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sslengine import catalog
from sslengine.command import columns, documents
from sslengine.command.counts import expect_counts
from sslengine.command.embed import ALL_OF_IT
from sslengine.command.judged_parts import start_parts
from sslengine.command.new_file import expect_writable
from sslengine.command.own_images import own_images, typed_plugins
from sslengine.command.run_there import expect_run
from sslengine.config.compose import overrides, typed
from sslengine.config.options import DEVICES
from sslengine.config.run_folder import open_run
from sslengine.config.sections import read
from sslengine.data.options import DataOptions
from sslengine.errors import ConfigError, OutputError
from sslengine.evaluation.options import SUITES, frozen_protocol
from sslengine.launch.auto import settle_widths
from sslengine.registry import import_dotted

assert catalog  # importing it declares all names

PROBE_GROUP = "LINEAR_PROBE.GROUP_COLUMN"
NEIGHBOURS = [1, 20]
# What a suite trains with labels: functions of with_labels.py.
TRAINED = {"quick": (), "frozen": ("swept",), "full": ("swept", "fine_tuned")}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslengine judge", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", nargs="?",
        help="the folder of a run; timm/NAME, torchvision/NAME")  # fmt: skip
    add("--train", metavar="DATA", help="labelled images, as for `sslengine train`")
    add("--val", metavar="DATA", help="those to score on")
    columns.add_columns(parser, group="images with one value here are held out together")
    add(
        "--suite",
        choices=tuple(SUITES),
        default="quick",
        help="frozen: also further protocols (EVALUATE.PROTOCOLS), and sweeps of linear and "
        "attentive classifiers; full: also corrupted images, and all layers are trained with "
        "all, 10 %% and 1 %% of the labels (docs/judging/)",
    )
    add("--weights", metavar="FILE", help="of timm/NAME or torchvision/NAME; default: download")
    add("--network", choices=("auto", "student", "teacher"), default="auto")
    add("--device", choices=DEVICES, default="auto",
        help="auto: the run's, if this machine has it")  # fmt: skip
    add("--gpus", type=int, metavar="N", help="default: as many as the run has processes")
    add("--workers", type=int, metavar="N", help="of each process: they load images")
    add("--set", action="append", default=[], dest="values", metavar="KEY=VALUE",
        help="any key of the config")  # fmt: skip
    add("--trust-config", action="store_true", help="allow config.yaml to run code")
    documents.add_json(parser, "print evaluation.json on stdout, and all else on stderr")
    add = parser.add_argument_group("of features in files").add_argument
    add("--features", type=Path, nargs="+", metavar="FILE", help="of training and test images")
    add("--labels", type=Path, nargs="+", metavar="FILE",
        help="their labels, if they are in other files")  # fmt: skip
    add("--out", type=Path, metavar="FILE", help="also write the scores here, as .json; of "
        "timm/NAME and torchvision/NAME a folder for scores and features")  # fmt: skip
    return parser


def main(arguments: Sequence[str]) -> int:
    parser = make_parser()
    given = parser.parse_args(arguments)
    if (given.run is None) == (given.features is None):
        parser.error("expected the folder of a run, or --features, and not both")
    expect_counts(given, gpus=0, workers=0)
    if given.features is not None:
        return _features(given)
    network = import_dotted("sslengine.command.stock:find_stock")(given.run)
    if given.labels or (given.out and not network):
        raise ConfigError("--labels, --out: they belong to --features.")
    if network and given.train is None:
        raise ConfigError(f"{given.run}: name the images to judge it on: --train DATA --val DATA.")
    if (given.train is None) != (given.val is None):
        raise ConfigError("--train, --val: give both, or none of them.")
    as_folder = import_dotted("sslengine.command.stock:as_folder")
    given.run = as_folder(given.run, given.weights, given.out)
    expect_run(given.run)
    trusted = given.trust_config
    values, notes = _images(given) if given.train else own_images(given)
    said = [*overrides(values), *typed_plugins(given.values)]
    opened = open_run(given.run, said, trusted=trusted, judged=True, as_trained=True)
    _expect_writable(given.run)
    on_machine = import_dotted("sslengine.command.judging_machine:of_machine")
    machine, note = on_machine(given, opened.config)
    given.values, notes = [*machine, *given.values], [*notes, *filter(None, [note])]
    data = read(opened.config, DataOptions)
    entries, _ = import_dotted("sslengine.data.judged_view:choose")(data)
    if given.group:
        values[PROBE_GROUP] = given.group
    images = dict(values)
    values |= _protocol(given, entries)
    if SUITES[given.suite]:
        values["EVALUATE.PROTOCOLS"] = [*SUITES[given.suite]]
    if given.val is not None:
        decoded = {f"DATA.TEST.{key}": getattr(data.TRAIN, key) for key in DECODED_BY}
        values, images = {**values, **decoded}, {**images, **decoded}
    run = open_run(
        given.run, ["engine_name=evaluate", *overrides(values), *typed(given.values)],
        trusted=trusted, judged=True, as_trained=True,
    )  # fmt: skip
    runs = [run]
    for part in TRAINED[given.suite]:
        more, why = import_dotted(f"sslengine.command.with_labels:{part}")(given, images, entries)
        runs, notes = [*runs, *more], [*notes, *filter(None, [why])]
    if given.json and any(run.config.SLURM.USE_SLURM for run in runs):
        raise ConfigError("--json: a job of SLURM writes evaluation.json when it has ended.")
    with documents.apart(given.json):
        status: int = start_parts([settle_widths(each) for each in runs], notes)
    if given.json and not status and os.environ.get("RANK", "0") == "0":
        documents.show(json.loads((given.run / "evaluation.json").read_text(encoding="utf-8")))
    return status


def _expect_writable(run: Path) -> None:
    if not os.access(run, os.W_OK | os.X_OK):
        raise OutputError(
            f"{run} is not writable, and the scores and features of a run are kept in its folder. "
            f"Copy it to another place, and judge the copy."
        )


# Both sets are decoded as the images that the network was trained on.
DECODED_BY = ("IMAGE_MODE", "PIXEL_RANGE", "TRANSPARENT", "IMAGE_PAGE", "EXIF_ROTATION")


def _features(given: argparse.Namespace) -> int:
    if len(given.features) > 2:
        raise ConfigError(f"--features: expected one file or two, got {len(given.features)}.")
    of_columns = given.image_column or given.label_column or given.group
    of_loading = (given.gpus, given.workers) != (None, None)
    of_run = (given.train, given.val, given.weights, of_columns, of_loading)
    if any(of_run) or given.network != "auto":
        raise ConfigError(
            "--train, --val, --weights, --image-column, --label-column, --group, --network, "
            "--gpus, --workers: they belong to a run, not to --features."
        )
    if given.out is not None:
        if given.out.suffix != ".json":
            raise OutputError(f"--out {given.out}: expected a name that ends in .json.")
        expect_writable(given.out, "--out")
    status: int = import_dotted("sslengine.command.judge_features:judge_features")(
        given, NEIGHBOURS
    )
    return status


def _images(given: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Of --train and --val; with labels if they have classes, --val only if --train has some."""
    look = import_dotted("sslengine.command.images:look")
    said = _columns(given)
    found = {split: look(data, said[split].get, split=split)
             for split, data in (("TRAIN", given.train), ("TEST", given.val))}  # fmt: skip
    asked = columns.of_split(given.image_column, given.label_column)
    columns.expect_effect(asked, {each.place: each.name for each in found.values()})
    values: dict[str, Any] = dict(ALL_OF_IT)
    values |= {key.replace("DATA.TRAIN.", "DATA.TEST."): value for key, value in values.items()}
    for split, each in found.items():
        labels = each.has_classes and found["TRAIN"].has_classes
        values |= each.keys_over(split, labels=labels)
        if not labels:
            values[f"DATA.{split}.LABEL_SOURCES"] = []
    notes = (columns.without_labels(each.place, said[split]) for split, each in found.items()
             if not each.source.num_classes)  # fmt: skip
    return values, list(dict.fromkeys(filter(None, notes)))


def _columns(given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Of each split; --val is read as --train, if it is a table too and nothing else is said."""
    asked = columns.of_split(given.image_column, given.label_column)
    train, test = (
        columns.of_run(given.run, data, {**columns.of_set(given.values, split), **asked})
        for split, data in (("TRAIN", given.train), ("TEST", given.val))
    )
    alike = Path(given.train).suffix == Path(given.val).suffix
    return {"TRAIN": train, "TEST": columns.over(train, test) if alike else test}


def _protocol(given: argparse.Namespace, entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "CHECKPOINT.DIR": str(given.run),
        "NEAREST_NEIGHBOR.TOPK": NEIGHBOURS,
        "NEAREST_NEIGHBOR.L2_NORM_FEATS": True,
        **frozen_protocol(given.network, entries),
    }
