"""`train_svm` and `train_svm_low_shot`: VISSL's SVMs on frozen features, for each layer.

Into the folder of the layer, in the run's folder, VISSL's files are written:

    train_svm            test_ap.npy (classes x 1), crossval_ap.npy (classes x costs) and
                         chosen_cost.npy
    train_svm_low_shot   test_ap_sample{n}_k{k}.npy (1 x costs) and, of all draws,
                         test_ap_{mean,min,max,std}.npy (k x costs)

and the machines that are trained, in .npz files: after a kill, those that are missing follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.contrib.vissl_benchmarks.inputs import benchmark_inputs
from sslengine.contrib.vissl_benchmarks.report import Report
from sslengine.engines.features import save
from sslengine.engines.run import Run
from sslengine.evaluate.options import LowShotOptions, SvmOptions
from sslengine.evaluate.outcome import Outcome
from sslengine.evaluate.store import Kept, file_name
from sslengine.evaluate.svm import MakeKept, low_shot_svm, svm
from sslengine.registry import register_engine

# From (the four sets, where machines are kept) to the result.
Compute = Callable[..., Outcome]


@register_engine("train_svm")
def train_svm(run: Run) -> None:
    """All ranks compute features; rank 0 trains, and the other ranks do not wait."""
    _each_layer(run, "train_svm", svm, _save_tables)


@register_engine("train_svm_low_shot")
def train_svm_low_shot(run: Run) -> None:
    options = read(run.config, SvmOptions).low_shot
    _each_layer(run, "train_svm_low_shot", low_shot_svm, partial(_save_low_shots, options))


def _each_layer(
    run: Run, name: str, compute: Compute, write: Callable[[Path, Outcome], None]
) -> None:
    given = read(run.config, RunOptions).SVM_FEATURES_PATH
    inputs = benchmark_inputs(run, given, "config.SVM_FEATURES_PATH")
    options = read(run.config, SvmOptions)
    report = Report(run, name)
    for layer in inputs.layers:
        folder = run.run_dir / file_name(layer)
        kept: MakeKept = partial(Kept, folder / name, again=options.force_retrain)
        found = compute(*inputs.sets(layer), options=options, kept=kept)
        write(folder, found)
        report.add(layer, found)
    report.end()


def _save_tables(folder: Path, found: Outcome) -> None:
    for name, table in found.tables.items():
        save(folder / f"{name}.npy", table)


def _save_low_shots(options: LowShotOptions, folder: Path, found: Outcome) -> None:
    for name, table in found.tables.items():
        save(folder / f"test_ap_{name}.npy", table)
    if not found.tables:
        return
    draws = np.array(
        [
            [found.tables[f"sample{seed}_k{k}"][0] for seed in options.sample_inds]
            for k in options.k_values
        ]
    )  # k x draws x costs
    over: Mapping[str, Any] = {"mean": np.mean, "min": np.min, "max": np.max, "std": np.std}
    for name, of in over.items():
        save(folder / f"test_ap_{name}.npy", of(draws, axis=1))
