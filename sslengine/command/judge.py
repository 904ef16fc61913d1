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
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sslengine import startup
from sslengine.command import arguments as args
from sslengine.command import data as images_of
from sslengine.command.arguments import Argument
from sslengine.command.networks import find_stock, make_folder
from sslengine.config.compose import overrides, typed
from sslengine.config.resolve import Resolved
from sslengine.config.run_folder import open_run
from sslengine.config.sections import read
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.errors import (
    ConfigError,
    DataError,
    OutputError,
    Preempted,
    SSLEngineError,
    readable,
)
from sslengine.evaluate.options import SUITES, frozen_protocol
from sslengine.launch.auto import settle_widths
from sslengine.launch.cli import ended_by, run_all, start
from sslengine.models.options import ModelOptions
from sslengine.registry import MODELS
from sslengine.trust import closed

OF_RUN = ("--train", "--val", "--weights", "--image-column", "--label-column", "--group",
          "--network", "--gpus", "--workers")  # fmt: skip
PROBE_GROUP = "LINEAR_PROBE.GROUP_COLUMN"
NEIGHBOURS = [1, 20]
# The share of a run's own images that is held out where it has no test images.
HELD_OUT = 0.2
# Both sets are decoded as the images that the network was trained on.
DECODED_BY = ("IMAGE_MODE", "PIXEL_RANGE", "TRANSPARENT", "IMAGE_PAGE", "EXIF_ROTATION")
ARGUMENTS = (
    replace(args.RUN, nargs="?", help="the folder of a run; timm/NAME, torchvision/NAME"),
    Argument("--train", "labelled images, as for `sslengine train`", metavar="DATA"),
    Argument("--val", "those to score on", metavar="DATA"),
    args.IMAGE_COLUMN,
    args.LABEL_COLUMN,
    Argument("--group", "images with one value here are held out together", metavar="COLUMN"),
    Argument("--suite", "frozen: also further protocols (EVALUATE.PROTOCOLS), and sweeps of linear "
             "and attentive classifiers; full: also corrupted images, and all layers are trained "
             "with all, 10 %% and 1 %% of the labels (docs/judging/)",
             choices=tuple(SUITES), default="quick"),
    Argument("--weights", "of timm/NAME or torchvision/NAME; default: download", metavar="FILE"),
    args.NETWORK,
    replace(args.DEVICE, help="auto: the run's, if this machine has it"),
    Argument("--gpus", "default: as many as the run has processes", int, "N", least=0),
    replace(args.WORKERS, help="of each process: they load images"),
    args.VALUES,
    args.TRUST_CONFIG,
    replace(args.JSON, help="print evaluation.json on stdout, and all else on stderr"),
    Argument("--features", "of training and test images", Path, "FILE", nargs="+",
             group="of features in files"),
    Argument("--labels", "their labels, if they are in other files", Path, "FILE", nargs="+",
             group="of features in files"),
    Argument("--out", "also write the scores here, as .json; of timm/NAME and torchvision/NAME a "
             "folder for scores and features", Path, "FILE", group="of features in files"),
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    parser = args.make_parser(__name__)
    given = parser.parse_args(arguments)
    if (given.run is None) == (given.features is None):
        parser.error("expected the folder of a run, or --features, and not both")
    return _judge_run(given) if given.features is None else _judge_features(given)


def _judge_run(given: argparse.Namespace) -> int:
    _expect_fitting(given)
    given.run = make_folder(given.run, given.weights, given.out)
    args.expect_run(given.run)
    from sslengine.command.machine import judging_keys
    from sslengine.data.judged_view import choose

    values, notes = _find_images(given) if given.train else _own_images(given)
    opened = _open(given, [*overrides(values), *_typed_plugins(given.values)])
    if not os.access(given.run, os.W_OK | os.X_OK):
        raise OutputError(
            f"{given.run} is not writable, and the scores and features of a run are kept in its "
            f"folder. Copy it to another place, and judge the copy."
        )
    machine, note = judging_keys(given, opened.config)
    given.values, notes = [*machine, *given.values], [*notes, *filter(None, [note])]
    data = read(opened.config, DataOptions)
    entries, _ = choose(data)
    values |= {PROBE_GROUP: given.group} if given.group else {}
    if given.val is not None:
        values |= {f"DATA.TEST.{key}": getattr(data.TRAIN, key) for key in DECODED_BY}
    from sslengine.models.weights.state import keys_of_network

    protocol = {
        "CHECKPOINT.DIR": str(given.run),
        **keys_of_network(opened.config, given.network),
        "NEAREST_NEIGHBOR.TOPK": NEIGHBOURS,
        "NEAREST_NEIGHBOR.L2_NORM_FEATS": True,
        **frozen_protocol(given.network, entries, _has_own_trunk(opened)),
        **({"EVALUATE.PROTOCOLS": [*SUITES[given.suite]]} if SUITES[given.suite] else {}),
    }
    said = ["engine_name=evaluate", *overrides({**values, **protocol}), *typed(given.values)]
    runs = [_open(given, said)]
    more, why = _plan_training(given, values, entries)
    runs, notes = [*runs, *more], [*notes, *why]
    if given.json and any(run.config.SLURM.USE_SLURM for run in runs):
        raise ConfigError("--json: a job of SLURM writes evaluation.json when it has ended.")
    with args.keep_apart(given.json):
        status = start_parts([settle_widths(each) for each in runs], notes)
    if given.json and not status and os.environ.get("RANK", "0") == "0":
        args.print_document(json.loads((given.run / "evaluation.json").read_text(encoding="utf-8")))
    return status


def _expect_fitting(given: argparse.Namespace) -> None:
    """Raise a ConfigError unless the options of a run's judgement fit each other."""
    network = find_stock(given.run)
    if given.labels or (given.out and not network):
        raise ConfigError("--labels, --out: they belong to --features.")
    if network and given.train is None:
        raise ConfigError(f"{given.run}: name the images to judge it on: --train DATA --val DATA.")
    if (given.train is None) != (given.val is None):
        raise ConfigError("--train, --val: give both, or none of them.")


def _open(given: argparse.Namespace, said: Sequence[str]) -> Resolved:
    return open_run(given.run, said, trusted=given.trust_config, judged=True, as_trained=True)


def _has_own_trunk(opened: Resolved) -> bool:
    """Say whether the run's trunk is a part of a custom model, and none that MODEL.TRUNK names."""
    if not MODELS.is_users(opened.config.MODEL.BASE_MODEL_NAME):
        return False
    import torch

    from sslengine.engine.passes import trunk_of
    from sslengine.models.build import build_model
    from sslengine.models.trunks.base import PlainTrunk

    with closed(opened.opened), torch.random.fork_rng(devices=[]):
        return isinstance(trunk_of(build_model(read(opened.config, ModelOptions))), PlainTrunk)


def _typed_plugins(values: Sequence[str]) -> list[str]:
    """Return the plugins that the user types, and so trusts, also where the config names them."""
    return [each for each in typed(values) if each.startswith("config.PLUGINS=")]


def _plan_training(
    given: argparse.Namespace, images: dict[str, Any], entries: list[dict[str, Any]]
) -> tuple[list[Resolved], list[str]]:
    """Return the runs that the suite trains with labels, and why some are left out."""
    if given.suite == "quick":
        return [], []
    from sslengine.command.tuning import fine_tune, sweep

    planned = (sweep, fine_tune) if given.suite == "full" else (sweep,)
    parts = [plan(given, images, entries) for plan in planned]
    return [run for runs, _ in parts for run in runs], [why for _, why in parts if why]


def _judge_features(given: argparse.Namespace) -> int:
    if len(given.features) > 2:
        raise ConfigError(f"--features: expected one file or two, got {len(given.features)}.")
    said = [each.flag for each in ARGUMENTS if getattr(given, each.name) != each.default]
    if of_run := [each for each in said if each in OF_RUN]:
        raise ConfigError(f"{', '.join(of_run)}: they belong to a run, not to --features.")
    if given.out is not None:
        if given.out.suffix != ".json":
            raise OutputError(f"--out {given.out}: expected a name that ends in .json.")
        args.expect_writable(given.out, "--out")
    from sslengine.command.judge_features import judge_features

    return judge_features(given, NEIGHBOURS)


# ---- which images


def _find_images(given: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of --train and --val, and notes.

    With labels if they have classes, --val only if --train has some. --val is read as --train, if
    it is a table too and nothing is said of it.
    """
    train, test = (
        images_of.run_keys(given.run, data, _asked(given, split))
        for split, data in (("TRAIN", given.train), ("TEST", given.val))
    )
    alike = Path(given.train).suffix == Path(given.val).suffix
    said = {"TRAIN": train, "TEST": images_of.merge_keys(train, test) if alike else test}
    found = {split: images_of.look(data, said[split].get, split=split)
             for split, data in (("TRAIN", given.train), ("TEST", given.val))}  # fmt: skip
    columns = images_of.split_keys(given.image_column, given.label_column)
    images_of.expect_effect(columns, {each.place: each.name for each in found.values()})
    values: dict[str, Any] = dict(images_of.ALL_OF_IT)
    values |= {key.replace("DATA.TRAIN.", "DATA.TEST."): value for key, value in values.items()}
    for split, each in found.items():
        labels = each.has_classes and found["TRAIN"].has_classes
        values |= each.keys_over(split, labels=labels)
        if not labels:
            values[f"DATA.{split}.LABEL_SOURCES"] = []
    notes = (images_of.suggest_labels(each.place, said[split]) for split, each in found.items()
             if not each.source.num_classes)  # fmt: skip
    return values, list(dict.fromkeys(filter(None, notes)))


def _asked(given: argparse.Namespace, split: str) -> dict[str, Any]:
    """Return the keys of a split that --set and the options of columns say."""
    columns = images_of.split_keys(given.image_column, given.label_column)
    return {**images_of.typed_keys(given.values, split), **columns}


def _own_images(given: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of the run's own images, with labels and test images where it has none.

    Labels are those that its source knows. Of a run without test images a fifth is held out: of
    each class, if every one has images enough.
    """
    from sslengine.data.sources.base import build_sources

    values = {f"DATA.TRAIN.{key}": value for key, value in _asked(given, "TRAIN").items()}
    opened = _open(given, [*overrides(values), *_typed_plugins(given.values)])
    data = read(opened.config, DataOptions)
    if data.TEST.DATA_SOURCES:
        values |= {f"DATA.TEST.{key}": value for key, value in _asked(given, "TEST").items()}
    with closed(opened.opened):
        sources = build_sources(data.TRAIN, "TRAIN")
    names = data.TRAIN.LABEL_SOURCES
    if not names and sources[0].num_classes > 1:
        names = data.TRAIN.DATA_SOURCES[:1]
    for split, each in (("TRAIN", data.TRAIN), ("TEST", data.TEST)):
        if names and not data.TRAIN.LABEL_SOURCES and each.DATA_SOURCES:
            values[f"DATA.{split}.LABEL_SOURCES"] = each.DATA_SOURCES[:1]
        values[f"DATA.{split}.LABEL_TYPE"] = "standard" if names else "sample_index"
    if not data.TEST.DATA_SOURCES and not data.HOLD_OUT.SHARE:
        labelled = replace(data.TRAIN, LABEL_SOURCES=names)
        values |= _test_images(labelled, sources, given.group)
    if data.TRAIN.LABEL_SOURCES or sources[0].num_classes or len(data.TRAIN.DATA_PATHS) != 1:
        return values, []
    note = images_of.suggest_labels(data.TRAIN.DATA_PATHS[0], images_of.typed_keys(given.values))
    return values, [note] if note else []


def _test_images(train: SplitOptions, sources: Sequence[Any], group: str) -> dict[str, Any]:
    """Hold images out, but of so few that none would be one: kNN leaves each out then."""
    made: dict[str, Any] = {"DATA.TRAIN.DATA_LIMIT": -1}
    if round(HELD_OUT * len(sources[0])):
        made["DATA.HOLD_OUT.SHARE"] = HELD_OUT
        if group:
            made[images_of.GROUP] = group
        elif _has_some_of_each_class(train, sources):
            made["DATA.HOLD_OUT.STRATIFIED"] = True
    return made


def _has_some_of_each_class(train: SplitOptions, sources: Sequence[Any]) -> bool:
    """Say whether the share of every class is an image or more. Not where images have several."""
    from sslengine.data.sources.labels import standard_labels

    with suppress(DataError):  # reported where the images are read
        found = standard_labels(train, "TRAIN", sources, needed=True)
        if found and found[0].column.ndim == 1:
            smallest = np.unique(found[0].column, return_counts=True)[1].min()
            return bool(round(HELD_OUT * smallest))
    return False


# ---- the parts


def start_parts(runs: Sequence[Resolved], left_out: Sequence[str]) -> int:
    """Run the parts one after the other: an error of one does not stop the others.

    What was left out, and why, is printed at the end and in the notes of evaluation.json. left_out:
    notes on parts that are not among the runs. Return the worst exit status.
    """
    from sslengine.engines.report import add_notes

    notes = [*left_out]
    if any(run.config.SLURM.USE_SLURM for run in runs):  # the jobs report their errors themselves
        _tell(notes)
        return start(runs)
    worst, printed = 0, set()
    for number, run in enumerate(runs):
        if number:
            startup.begin()
        try:
            run_all([run])
        except (Preempted, KeyboardInterrupt) as error:
            return ended_by(error)
        except SSLEngineError as error:
            worst = max(worst, ended_by(error, printed=str(error) not in printed))
            printed.add(str(error))
            notes.append(f"{_name(run)}: {' '.join(str(error).split())}")
    if os.environ.get("RANK", "0") == "0":
        _tell(notes)
        add_notes(Path(runs[0].config.CHECKPOINT.DIR), notes)
    return worst


def _tell(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"  note        {readable(note)}")


def _name(run: Resolved) -> str:
    """Name the part as its row of the table does."""
    if run.engine_name == "sweep":
        return f"{run.config.HEAD_SWEEP.HEAD}_sweep"
    return str(run.config.FINETUNE.NAME) if run.engine_name == "finetune" else run.engine_name
