"""`finetune`: train all layers with labels, from a run's weights; for comparison from random ones.

Each is a separate `train` run in `finetune/` in the run's folder, which resumes like any other.
The metrics of the test after its last epoch are in the table and in evaluation.json of the run,
under `finetuned`. Nothing is chosen by these metrics. With DATA.TRAIN.DATA_LIMIT_SAMPLING.SHARE or
LIST the labels are few, and labelled.csv in its folder names the images.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.options import DataOptions
from sslengine.distributed.collectives import broadcast_object
from sslengine.distributed.ranks import is_primary
from sslengine.dotted import leaves
from sslengine.engines.few_label_lists import write_training_list
from sslengine.engines.options import FinetuneOptions
from sslengine.engines.report import FINETUNE, report_trained, write_result
from sslengine.engines.run import Run, check_results
from sslengine.engines.sub_run import digest_of, folder_of, sub_run
from sslengine.engines.train import train_task
from sslengine.errors import ConfigError
from sslengine.evaluate.outcome import VERSIONS
from sslengine.models.options import ModelOptions
from sslengine.registry import register_engine
from sslengine.trained import require_weights

LABELLED = "labelled.csv"  # in the folder of a training on few labels


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
    labelled = write_training_list(run, folder / LABELLED) if few and is_primary() else 0
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
