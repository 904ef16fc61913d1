"""Protocols that `config.EVALUATE.PROTOCOLS` names, and metrics without labels, on features.

Each gives metrics, and notes of what it could not do; one that fails does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from sslengine.evaluate.answers import Probed, calibrate_probe, per_class
from sslengine.evaluate.features import Rows, rows_at
from sslengine.evaluate.few_shot import few_labels, few_shot_knn, few_shot_logistic
from sslengine.evaluate.label_free.metric import Inputs, measure, sub_sample
from sslengine.evaluate.options import LinearProbeOptions, SvmOptions
from sslengine.evaluate.outcome import VERSIONS, Outcome
from sslengine.evaluate.retrieval import retrieval
from sslengine.evaluate.svm import low_shot_arguments, low_shot_svm, svm
from sslengine.progress import progress

# Training features and labels, test features and labels.
Sets = tuple[Rows, Tensor, Rows, Tensor]


def _retrieve_test_images(train: Rows, labels: Tensor, test: Rows, wanted: Tensor) -> Outcome:
    return retrieval(test, wanted)


# They take the linear probe in place of the training set.
BY_PROBE = ("calibration", "per_class")
COMPUTE: Mapping[str, Callable[..., Outcome]] = {
    "few_shot_knn": few_shot_knn,
    "few_shot_linear": few_shot_logistic,
    "few_labels": few_labels,
    "svm": svm,
    "low_shot_svm": low_shot_svm,
    "retrieval": _retrieve_test_images,
    "calibration": calibrate_probe,
    "per_class": per_class,
}


def run_protocols(
    sets: Sets,
    names: Sequence[str],
    machines: SvmOptions,
    options: LinearProbeOptions,
    probe: Probed,
    groups: Tensor | None = None,
) -> dict[str, dict[str, Any]]:
    """Compute the named ones. probe: the linear probe of these sets, with these options."""
    few: dict[str, Any] = {"options": machines}
    how: dict[str, dict[str, Any]] = {
        "svm": few, "low_shot_svm": {**few, **low_shot_arguments(machines.low_shot)},
        "few_shot_linear": {"options": options},
        "few_labels": {"options": options, "groups": groups},
    }  # fmt: skip
    found = {}
    for name in filter(COMPUTE.__contains__, names):
        given = (probe, *sets[2:]) if name in BY_PROBE else sets
        with progress(f"protocol {name}"):
            found[name] = make_row(name, COMPUTE[name](*given, **how.get(name, {})))
    return found


NO_VIEWS = dict.fromkeys(("views", "projections", "previous"), "`sslengine rank` computes it")


def measure_label_free(features: Rows, names: Sequence[str]) -> dict[str, Any]:
    """Measure the images of TRAIN; value, number of images, and why there is no value."""
    if not names:
        return {}
    some = rows_at(features, sub_sample(len(features))).flatten(1)
    found = measure(Inputs(some, missing=NO_VIEWS), names)
    return {name: each.as_json() for name, each in found.items()}


# Where hyper-parameters are chosen, of protocols whose details do not say it.
CHOSEN_ON = {
    "few_shot_linear": "cross-validation on the drawn images; of fewer than 5 nothing: it is fixed",
    "svm": "cross-validation on the training images",
}
NOTHING = "nothing: there is nothing to choose"


def make_row(name: str, found: Outcome) -> dict[str, Any]:
    """Make the report's row of a protocol. The rest is in `about` of the features."""
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
