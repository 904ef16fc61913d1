"""The whole report of `evaluate` at one rank and at several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sslengine.data.sources.shapes import draw_shape
from sslengine.distributed.ranks import is_primary
from sslengine.engines.evaluate import evaluate
from sslengine.engines.train import train
from sslengine.evaluation.options import PROTOCOLS
from sslengine.testing.state import flat
from tests.engines.runs import make_run
from tests.engines.test_evaluate import FROZEN, SHAPES
from tests.ranks import RankPool

ASKED: dict[str, Any] = {
    **FROZEN,
    "EVALUATE": {
        "DENSE": {"IMAGES": 6}, "SEGMENTATION": {"ITERATIONS": 20}, "LABEL_FREE": ["rankme", "clid"],
        "OUTSIDE": {"SOURCE": "upright_shapes", "LIMIT": 10},
        "OTHER_SETS": {"upright": {"SOURCE": "upright_shapes", "LIMIT": 10, "ANSWERS": "shown"}},
        "CORRUPTIONS": {"KINDS": ["shot_noise", "fog"], "SEVERITIES": [3]},
    },
    "LINEAR_PROBE": {"PENALTIES": [10.0]},
    "SVM": {"costs": {"costs_list": [0.1, 1.0]}, "max_iter": 100,
            "low_shot": {"k_values": [1, 4], "sample_inds": [1]}},
}  # fmt: skip


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("trained")
    train(make_run(folder, **SHAPES, OPTIMIZER__num_epochs=1))
    for number in range(6):
        for kind in ("original", "strong"):
            path = folder / "copies" / kind / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw_shape("TRAIN", number, 16 + 4 * (kind == "strong"))).save(path)
    return str(folder / "checkpoints" / "checkpoint.torch")


def judged(folder: Path, weights: str, ranks: int, protocols: list[str]) -> dict[str, Any]:
    """All values of the report by their names."""
    copies = {"PATH": str(Path(weights).parents[1] / "copies"), "SIDE": 32}
    evaluated = {**ASKED["EVALUATE"], "PROTOCOLS": protocols, "COPIES": copies}
    asked = {**ASKED, "EVALUATE": evaluated}
    evaluate(make_run(folder, "evaluate", **asked, MODEL__WEIGHTS_INIT__PARAMS_FILE=weights,
                      DISTRIBUTED__NUM_PROC_PER_NODE=ranks))  # fmt: skip
    return flat(json.loads((folder / "evaluation.json").read_text())) if is_primary() else {}


# The others take seconds: regressions on few images and all pixels, and passes over the images.
QUICK = ["few_shot_knn", "svm", "low_shot_svm", "retrieval", "calibration", "per_class"]


@pytest.mark.parametrize(
    ("ranks", "protocols"),
    [(2, QUICK), *(pytest.param(each, [*PROTOCOLS], marks=pytest.mark.slow) for each in (2, 4))],
)
def test_the_report_is_the_same(
    ranks: int, protocols: list[str], weights: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Every value: kNN, linear probe, label-free metrics, protocols, intervals, notes.

    Sums over ranks round otherwise: allow for that in float64.
    """
    one = judged(tmp_path / "alone", weights, 1, protocols)
    pool: RankPool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[ranks])
    found, *_ = pool.run(judged, tmp_path / "shared", weights, ranks, protocols)
    assert list(found) == list(one)
    for name, value in one.items():
        number = isinstance(value, float)
        assert found[name] == (pytest.approx(value, rel=1e-9, nan_ok=True) if number else value), (
            name
        )
    assert {name.split(".")[3] for name in found if ".protocols." in name} == {*protocols}
