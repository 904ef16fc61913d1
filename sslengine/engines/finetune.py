"""`finetune`: train all layers with labels, from a run's weights; for comparison from random ones.

Each is a separate `train` run in `finetune/` in the run's folder, which resumes like any other. Its
folder is named by all that its result depends on: other weights or another recipe are another one.
The metrics of the test after its last epoch are in the table and in evaluation.json of the run,
under `finetuned`. Nothing is chosen by these metrics. With DATA.TRAIN.DATA_LIMIT_SAMPLING.SHARE or
LIST the labels are few, and labelled.csv in its folder names the images.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from sslengine.atomic import write_whole
from sslengine.checkpoint.manifest import sha256_of
from sslengine.config.options import RunOptions
from sslengine.config.resolve import changed
from sslengine.config.sections import read
from sslengine.config.stored import is_fixed
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.manifest.tables import escape_formula
from sslengine.data.options import DataOptions
from sslengine.distributed.collectives import broadcast_object
from sslengine.distributed.ranks import is_primary
from sslengine.dotted import leaves
from sslengine.engines.features import paths_of
from sslengine.engines.options import FinetuneOptions
from sslengine.engines.report import FINETUNE, report_trained, write_result
from sslengine.engines.run import Run, check_results
from sslengine.engines.train import train_task
from sslengine.errors import ConfigError
from sslengine.evaluate.outcome import VERSIONS
from sslengine.models.options import ModelOptions
from sslengine.registry import register_engine
from sslengine.trained import require_weights

# In the folder of a training on few labels: number, path, label; a list that csv_filelist and
# DATA_LIMIT_SAMPLING.LIST read.
LABELLED = "labelled.csv"


@register_engine("finetune")
def finetune(run: Run) -> None:
    options, model = read(run.config, FinetuneOptions), read(run.config, ModelOptions)
    _check(run)
    starts = {"trained": require_weights(run.config, run.run_dir)}
    run.describe()
    if options.UNTRAINED and not (library := model.starts_from_library()):
        starts["untrained"] = None
    results: dict[str, Any] = {}
    for start, file in starts.items():
        results[start] = _finetuned(run, f"{options.NAME}-{start}", start, file)
    if options.UNTRAINED and library:
        run.say("note: the trunk starts from a library's weights; there is no untrained one")
    if is_primary():
        report_trained(run)
    check_results(run, {"test": results})


def _check(run: Run) -> None:
    data, tests = read(run.config, DataOptions), read(run.config, RunOptions).TEST_MODEL
    if not tests or not (data.TEST.DATA_SOURCES or data.HOLD_OUT.SHARE):
        raise ConfigError(
            "config.DATA.TEST: fine-tuning is judged on test images. Name their DATA_SOURCES, or "
            "set DATA.HOLD_OUT.SHARE; and TEST_MODEL: true."
        )


def _finetuned(run: Run, name: str, start: str, weights: Path | None) -> dict[str, Any]:
    """Train to the end, or read the result of a run that is complete. Collective."""
    digest = digest_of(weights)
    folder = folder_of(run, FINETUNE, name, digest)
    part = sub_run(run, folder, {"MODEL.WEIGHTS_INIT.PARAMS_FILE": str(weights or "")})
    run.say(f"{name}: {weights or 'as initialised'} -> {folder}")
    sampling = read(run.config, DataOptions).TRAIN.DATA_LIMIT_SAMPLING
    few = bool(sampling.SHARE or sampling.LIST)
    labelled = _list_images(run, folder / LABELLED) if few and is_primary() else 0
    task, _ = train_task(part)
    metrics = broadcast_object(_short(task.results["test"]) if is_primary() else {})
    row = {
        "protocol": read(run.config, FinetuneOptions).NAME,
        "version": VERSIONS["finetune"],
        "features": start,
        "metrics": metrics,
        "layer": "all layers",
        "steps": task.iteration,
        "chosen_on": "nothing: the test after the last epoch, of a recipe that is given",
    }
    if is_primary():
        row |= {"labelled": labelled} if few else {}
        write_result(run, folder, FINETUNE, weights, digest, row)
    return metrics


def _short(results: Mapping[str, Any]) -> dict[str, float]:
    """Shorten the meters' names: accuracy_list_meter.top_1.0 is `top_1`."""
    found: dict[str, float] = {}
    for name, value in leaves(results):
        meter, *words = name.split(".")
        if meter.endswith("_meter") and isinstance(value, (int, float)):
            found[".".join(words[:-1] if words[-1:] == ["0"] else words)] = value
    return found


def _list_images(run: Run, path: Path) -> int:
    """List the images that TRAIN uses, and count them."""
    data, seed = read(run.config, DataOptions), read(run.config, RunOptions).SEED_VALUE
    dataset = SSLDataset(data.TRAIN, "TRAIN", seed, hold_out=data.HOLD_OUT)
    every = range(len(dataset))
    labels = dataset.standard_labels[0] if dataset.standard_labels else every
    names = dataset.classes[0].names if dataset.classes else ()
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["number", "path", "label"])
    paths = paths_of(dataset, torch.arange(len(dataset)))
    for number, image, label in zip(dataset.rows, paths, map(int, labels), strict=True):
        called = names[label] if names else label
        table.writerow([int(number), escape_formula(image), escape_formula(called)])
    write_whole(path, text.getvalue().encode(errors="surrogateescape"))
    return len(dataset)


# ---- training inside a run's folder

# In addition to the model and the loss. The file of weights counts by its content.
DEPENDS_ON = (
    "OPTIMIZER.", "DATA.TRAIN.", "DATA.TEST.", "DATA.HOLD_OUT.", "SEED_VALUE", "HEAD_SWEEP.",
    "MODEL.WEIGHTS_INIT.NETWORK", "MODEL.WEIGHTS_INIT.SKIP_LAYERS",
)  # fmt: skip


def digest_of(weights: Path | None) -> str:
    """The SHA-256 of a file or of a folder's files; empty without one. Collective."""
    return broadcast_object(_digest(weights) if weights and is_primary() else "")


def folder_of(run: Run, parent: str, name: str, digest: str) -> Path:
    return run.run_dir / parent / f"{name}-{_key(run, digest)}"


def sub_run(run: Run, folder: Path, values: Mapping[str, object]) -> Run:
    """Train with these values, by their paths below `config`."""
    if is_primary():
        folder.mkdir(parents=True, exist_ok=True)
    # Its metrics have other names than those that the run expects.
    own = {"CHECKPOINT.DIR": str(folder), "EXPECTED_RESULTS": []}
    return replace(run, resolved=changed(run.resolved, {**values, **own}, "train"), run_dir=folder)


def _key(run: Run, digest: str) -> str:
    tree: Any = OmegaConf.to_container(run.config)
    of = {
        path: value
        for path, value in leaves(tree)
        if (is_fixed(path) or path.startswith(DEPENDS_ON))
        and not run.resolved.origins.get(f"config.{path}", "").startswith("derived:")
    }
    listed = run.config.DATA.TRAIN.DATA_LIMIT_SAMPLING.LIST
    if listed and Path(listed).is_file():  # it counts by its content
        of["DATA.TRAIN.DATA_LIMIT_SAMPLING.LIST"] = sha256_of(Path(listed))
    text = json.dumps([digest, of], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _digest(weights: Path) -> str:
    if weights.is_file():
        return sha256_of(weights)
    digest = hashlib.sha256()
    for path in sorted(each for each in weights.rglob("*") if each.is_file()):
        digest.update(f"{path.relative_to(weights)} {sha256_of(path)}\n".encode())
    return digest.hexdigest()
