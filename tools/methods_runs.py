"""The runs behind the tables of docs/methods.md: which images, which overrides, what they gave."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import yaml

from sslengine.config.compose import compose, overrides

ROOT = Path(__file__).resolve().parents[1]
RUN = [sys.executable, str(ROOT / "tools" / "run_distributed_engines.py")]
FASHION = "/usr/share/datasets/fashion-mnist"
EMOJI = ROOT / "runs" / "emoji"
SHAPES = "shapes"


@dataclass(frozen=True)
class Images:
    """A source, its files, and how many training images the probes get with their labels."""

    source: str
    train: str
    test: str
    labelled: int = -1
    # A table of the training images, with a column whose values the probe holds out as a whole.
    table: str = ""
    group: str = ""
    # Of those that the probes get, the share of each class that fine-tuning gets.
    tuned: float = 1.0

    def of(self, split: str, limit: int) -> dict[str, Any]:
        path = self.train if split == "TRAIN" else self.test
        return {"DATA_SOURCES": [self.source], "DATA_PATHS": [path], "DATA_LIMIT": limit}

    def labels(self) -> dict[str, Any]:
        return {"LABEL_SOURCES": [self.source]}

    def judged(self) -> dict[str, Any]:
        """The training images of kNN and of the linear probe."""
        found = {**self.of("TRAIN", self.labelled), **self.labels()}
        if not self.table:
            return found
        source = ["csv_filelist"]
        return {
            **found,
            "DATA_SOURCES": source,
            "LABEL_SOURCES": source,
            "DATA_PATHS": [self.table],
        }


SETS = {
    "fashion": Images("array_file", FASHION, FASHION, labelled=10_000, tuned=0.1),
    "emoji": Images(
        "disk_folder", f"{EMOJI}/train", f"{EMOJI}/val", table=f"{EMOJI}/train.csv", group="emoji"
    ),
}
# A quickstart makes as many steps on other images as on this many shapes.
SHAPES_OF_AN_EPOCH = 5_000
# Heads on normed tokens learn in fewer steps (docs/methods.md).
ATTENTIVE = {
    "HEAD_SWEEP": {
        "UNTRAINED": True,
        "NORM": "batch",
        "LR": [2e-2, 5e-2, 0.1],
        "WEIGHT_DECAY": [5e-4],
    },
    "OPTIMIZER.num_iterations": 600,
}
# All layers alike: from random weights those near the input have as much to learn.
TUNED = {
    "OPTIMIZER": {
        "num_iterations": 1500,
        "layer_wise_lr_decay.decay": 1.0,
        "param_schedulers.lr.auto_lr_scaling": {"auto_scale": True, "base_value": 0.002},
    },
    "TEST_EVERY_NUM_EPOCH": 1000,  # after the last step alone
}
_SEEN = [
    {"name": "ToTensor"},
    {"name": "Normalize", "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
]


@dataclass(frozen=True)
class Budget:
    """What is trained, and for how long."""

    trunk: str
    steps: int
    images_seen: int


@dataclass(frozen=True)
class Row:
    """A method, or a variant of it, on some images."""

    method: str
    variant: str = ""
    overrides: tuple[str, ...] = ()
    images: str = SHAPES

    @property
    def name(self) -> str:
        return f"{self.method}, {self.variant}" if self.variant else self.method

    @property
    def key(self) -> str:
        """Of its entry among the results."""
        return self.name if self.images == SHAPES else f"{self.name} on {self.images}"

    @property
    def file_name(self) -> str:
        return re.sub(r"[^\w+.]+", "_", self.key)

    @property
    def config(self) -> str:
        return self.method if "/" in self.method else f"quickstart/{self.method}"

    @property
    def yaml(self) -> Path:
        return ROOT / "configs" / f"{self.config}.yaml"

    def training(self) -> list[str]:
        """Overrides of the run."""
        if self.images == SHAPES:
            return list(self.overrides)
        said = config_of(self.yaml)
        values: dict[str, Any] = {"DATA.TRAIN": SETS[self.images].of("TRAIN", -1)}
        if not said["OPTIMIZER"].get("num_iterations"):
            steps = SHAPES_OF_AN_EPOCH // said["DATA"]["TRAIN"]["BATCHSIZE_PER_REPLICA"]
            values["OPTIMIZER.num_iterations"] = said["OPTIMIZER"]["num_epochs"] * steps
        return [*_overrides(values), *self.overrides]

    def budget(self) -> Budget:
        called = [f"config={self.yaml.stem}", *self.training()]
        value = compose(called, [str(self.yaml.parent)]).last_value
        batch = value("config.DATA.TRAIN.BATCHSIZE_PER_REPLICA")
        steps = value("config.OPTIMIZER.num_iterations")
        if not steps:
            an_epoch = value("config.DATA.TRAIN.DATA_LIMIT") // batch
            steps = value("config.OPTIMIZER.num_epochs") * an_epoch
        is_resnet = value("config.MODEL.TRUNK.NAME") == "resnet"
        return Budget("ResNet" if is_resnet else "ViT", steps, steps * batch)

    def judging(self) -> list[str]:
        """Further overrides, of kNN and a linear probe."""
        if self.images == SHAPES:
            return ["+config/benchmark/frozen=shapes"]
        return ["+config/benchmark/frozen=shapes", *_overrides(self._on_images())]

    def attentive(self) -> list[str]:
        """Further overrides, of an attentive probe of the trained and of the untrained trunk."""
        if self.images == SHAPES:
            seen = {"LABEL_SOURCES": ["shapes"], "TRANSFORMS": _SEEN}
            test = {"DATA_SOURCES": ["shapes"], "DATA_LIMIT": 2000, "DEFAULT_GRAY_IMG_SIZE": 48}
            values: dict[str, Any] = {"DATA.TRAIN": seen, "DATA.TEST": {**test, **seen}}
        else:
            values = self._on_images()
        return ["+config/benchmark/sweep=attentive", *_overrides({**values, **ATTENTIVE})]

    def fine_tuned(self) -> list[str]:
        """Further overrides, of training all layers with labels, from random weights too."""
        if self.images == SHAPES:
            return ["+config/benchmark/finetune=shapes"]
        values = self._on_images()
        del values["LINEAR_PROBE.GROUP_COLUMN"]
        crop = {"name": "RandomResizedCrop", "size": self._side(), "scale": [0.5, 1.0]}
        values["DATA.TRAIN"] |= {
            "TRANSFORMS": [crop, {"name": "RandomHorizontalFlip"}, *_SEEN],
            "BATCHSIZE_PER_REPLICA": 64,
        }
        if SETS[self.images].tuned < 1:
            values["DATA.TRAIN"]["DATA_LIMIT_SAMPLING"] = {"SHARE": SETS[self.images].tuned}
        values["DATA.TEST"]["BATCHSIZE_PER_REPLICA"] = 256
        return ["+config/benchmark/finetune=cnn", *_overrides({**values, **TUNED})]

    def _on_images(self) -> dict[str, Any]:
        """What kNN and the probes see: labelled images, resized alone."""
        images = SETS[self.images]
        view = {"TRANSFORMS": [self._resize(), *_SEEN]}
        return {
            "DATA.TRAIN": {**images.judged(), **view},
            "DATA.TEST": {**images.of("TEST", -1), **images.labels(), **view},
            "LINEAR_PROBE.GROUP_COLUMN": images.group,
        }

    def _resize(self) -> dict[str, Any]:
        return {"name": "Resize", "size": [self._side(), self._side()]}

    def _side(self) -> int:
        return next(_sides(config_of(self.yaml)["DATA"]["TRAIN"]["TRANSFORMS"]))


def _overrides(values: dict[str, Any]) -> list[str]:
    return overrides(dict(_flat(values, ())))


def _flat(values: dict[str, Any], place: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, (*place, key))
        else:
            yield ".".join((*place, key)), value


def _sides(entries: list[dict[str, Any]]) -> Iterator[int]:
    """The sides of views that TRANSFORMS name, from the first."""
    for entry in entries:
        for key in ("size_crops", "crop_size_image", "size"):
            if key in entry:
                yield entry[key][0] if isinstance(entry[key], list) else entry[key]


@dataclass(frozen=True)
class Job:
    row: Row
    seed: int
    folder: Path

    @property
    def overrides(self) -> list[str]:
        return [
            f"config={self.row.config}",
            f"config.SEED_VALUE={self.seed}",
            f"config.CHECKPOINT.DIR='{self.folder}'",
            *self.row.training(),
        ]

    @property
    def judged(self) -> Job:
        """Without the variant's changes of DATA and of heads, which kNN and the probes replace."""
        replaced = ("config.DATA.", "config.MODEL.HEAD.")
        kept = (each for each in self.row.overrides if not each.startswith(replaced))
        return replace(self, row=replace(self.row, overrides=tuple(kept)))


@dataclass(frozen=True)
class Scores:
    knn: float
    linear: float
    untrained_knn: float
    untrained_linear: float
    # student or teacher of a method that has both, model otherwise.
    network: str = "model"
    pixels_knn: float | None = None
    pixels_linear: float | None = None
    attentive: float | None = None
    untrained_attentive: float | None = None
    tuned: float | None = None
    untrained_tuned: float | None = None
    # Of the linear probe: see sslengine/evaluate/outcome.py.
    linear_version: int = 1


@dataclass(frozen=True)
class Cost:
    batch: int
    step_ms: float
    memory_mib: float


def scores_of(job: Job, more: Sequence[str] = ()) -> Scores:
    """Train and evaluate, as far as that is not done yet. more: `attentive`, `tuned`."""
    trained = job.folder / "trained"
    if not trained.exists():
        call(job, [])
        trained.touch()
    probed = _probed(job.folder)
    if "attentive" in more and len(probed) < 2:
        call(job.judged, job.row.attentive())
        probed = _probed(job.folder)
    judged = _judged(job.folder)
    if "scores" not in judged:
        call(job.judged, job.row.judging())
        judged = _judged(job.folder)
    if "tuned" in more and len(judged.get("finetuned", ())) < 2:
        call(job.judged, job.row.fine_tuned())
        judged = _judged(job.folder)
    of_tuned = {each["features"]: each["metrics"] for each in judged.get("finetuned", ())}
    scores = {each["features"]: each for each in judged["scores"]}
    about = scores["trained"]["about"]
    found: dict[str, Any] = {"network": judged["network"]}
    found["linear_version"] = about["versions"]["linear"]
    for prefix, features in PREFIXES.items():
        if features in scores:
            found[f"{prefix}knn"] = _only(scores[features]["knn"])
            found[f"{prefix}linear"] = scores[features]["linear"]
        if features in probed:
            found[f"{prefix}attentive"] = probed[features]
        if features in of_tuned:
            found[f"{prefix}tuned"] = _only(of_tuned[features])
    return Scores(**found)


PREFIXES = {"": "trained", "untrained_": "untrained", "pixels_": "raw pixels"}


def _judged(folder: Path) -> dict[str, Any]:
    """The report so far: it begins with the attentive probes, if they were asked for."""
    report = folder / "evaluation.json"
    return json.loads(report.read_text()) if report.exists() else {}


def _probed(folder: Path) -> dict[str, float]:
    """What the attentive probes have written."""
    rows = (json.loads(path.read_text()) for path in folder.glob("sweep/attentive-*/swept.json"))
    return {row["features"]: _only(row["metrics"]) for row in rows}


def cost_of(row: Row, folder: Path) -> Cost:
    """Time and memory of two epochs of a run that is alone on the machine."""
    job = Job(row, 0, folder / f"{row.file_name}_cost")
    shutil.rmtree(job.folder, ignore_errors=True)  # the tool's own folder, from a stopped call
    memory = call(job, ["config.OPTIMIZER.num_epochs=2", "config.LOG_FREQUENCY=5"])
    return Cost(memory_mib=memory, **_step(job.folder))


def _only(values: dict[str, float]) -> float:
    (value,) = values.values()
    return value


def call(job: Job, more: list[str]) -> float:
    """Run the command, with its output in a file. Returns its peak memory in MiB."""
    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / "output.log").open("ab") as output:
        process = subprocess.Popen(
            [*RUN, *job.overrides, *more],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = (job.folder / "output.log").read_text(errors="replace")[-2000:]
        raise SystemExit(f"{job.row.key}, seed {job.seed}, failed:\n{tail}")
    return usage.ru_maxrss / 1024


def _step(folder: Path) -> dict[str, Any]:
    """Images per step, and its time: the median over the run's log entries except the first."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["images_per_s"] for line in lines if line["kind"] == "step"][1:]
    config = yaml.safe_load((folder / "config.yaml").read_text())["config"]
    batch: int = config["DATA"]["TRAIN"]["BATCHSIZE_PER_REPLICA"]
    return {"batch": batch, "step_ms": 1000.0 * batch / statistics.median(speeds)}


def digest(config: Path, overrides: Sequence[str] = ()) -> str:
    values = json.dumps(_said(config), sort_keys=True)
    values += "".join(f"\n{each}" for each in overrides)
    return hashlib.sha256(values.encode()).hexdigest()[:12]


def config_of(config: Path) -> dict[str, Any]:
    return cast(dict[str, Any], _said(config)["config"])


def _said(config: Path) -> dict[str, Any]:
    """The values of the file and those that it is based on."""
    return compose([f"config={config.stem}"], [str(config.parent)]).said()
