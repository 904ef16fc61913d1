"""Protocols that `config.EVALUATE.PROTOCOLS` names, on the stored features of both splits.

Each gives metrics, and notes of what it could not do; one that fails does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from sslengine.evaluate.answers import calibrate_probe, per_class
from sslengine.evaluate.features import Rows
from sslengine.evaluate.few_shot import few_labels, few_shot_knn, few_shot_logistic
from sslengine.evaluate.options import LinearProbeOptions, SvmOptions
from sslengine.evaluate.outcome import VERSIONS, Outcome
from sslengine.evaluate.retrieval import retrieval
from sslengine.evaluate.svm import Svm, low_shot_arguments, low_shot_svm, svm
from sslengine.progress import progress

# Training features and labels, test features and labels.
Sets = tuple[Rows, Tensor, Rows, Tensor]


def _among_test_images(train: Rows, labels: Tensor, test: Rows, wanted: Tensor) -> Outcome:
    return retrieval(test, wanted)


# The names are those of evaluation.options.ON_FEATURES.
COMPUTE: Mapping[str, Callable[..., Outcome]] = {
    "few_shot_knn": few_shot_knn,
    "few_shot_linear": few_shot_logistic,
    "few_labels": few_labels,
    "svm": svm,
    "low_shot_svm": low_shot_svm,
    "retrieval": _among_test_images,
    "calibration": calibrate_probe,
    "per_class": per_class,
}


def run_protocols(
    sets: Sets,
    names: Sequence[str],
    machines: SvmOptions,
    probe: LinearProbeOptions,
    groups: Tensor | None = None,
) -> dict[str, dict[str, Any]]:
    by_probe = {"options": probe, "groups": groups}
    few: dict[str, Any] = {"options": Svm.read(machines)}
    options: dict[str, dict[str, Any]] = {
        "svm": few, "low_shot_svm": {**few, **low_shot_arguments(machines.low_shot)},
        "few_shot_linear": {"options": probe}, "few_labels": by_probe,
        "calibration": by_probe, "per_class": by_probe,
    }  # fmt: skip
    found = {}
    for name in filter(COMPUTE.__contains__, names):
        with progress(f"protocol {name}"):
            found[name] = row_of(name, COMPUTE[name](*sets, **options.get(name, {})))
    return found


# Where hyper-parameters are chosen, of protocols whose details do not say it.
CHOSEN_ON = {
    "few_shot_linear": "cross-validation on the drawn images; of fewer than 5 nothing: it is fixed",
    "svm": "cross-validation on the training images",
}
NOTHING = "nothing: there is nothing to choose"


def row_of(name: str, found: Outcome) -> dict[str, Any]:
    """What the report has of a protocol. The rest is in `about` of the features, or in details."""
    return {
        "protocol": name,
        "version": VERSIONS[name],
        "metrics": dict(found.metrics),
        "notes": list(found.notes),
        "seeds": list(found.seeds),
        "number_of_seeds": len(found.seeds),
        "chosen_on": found.details.get("chosen_on", CHOSEN_ON.get(name, NOTHING)),
        "details": found.details,
    }


def show_protocols(console: Console, found: Mapping[str, Mapping[str, Any]]) -> None:
    """found: by kind of features. A column for each, a line for each metric."""
    table = Table("protocol", "metric", box=None, pad_edge=False)
    for kind in found:
        table.add_column(kind, justify="right")
    lines = {
        (name, metric): None
        for each in found.values()
        for name, of in each.items()
        for metric in of["metrics"]
    }
    for name, metric in lines:
        values = [each.get(name, {}).get("metrics", {}).get(metric) for each in found.values()]
        table.add_row(name, metric, *("-" if v is None else f"{v:.1f} %" for v in values))
    if lines:
        console.print(table)
    notes: dict[tuple[str, str], list[str]] = {}
    for kind, each in found.items():
        for name, of in each.items():
            for note in of["notes"]:
                notes.setdefault((name, note), []).append(kind)
    for (name, note), kinds in notes.items():
        whose = "" if len(kinds) == len(found) else f"{'; '.join(kinds)}: "
        console.print(f"  note        {name}: {whose}{note}", markup=False)
