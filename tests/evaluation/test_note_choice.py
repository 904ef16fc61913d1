"""Every linear protocol says that its penalty is an end of the grid, and that its answer is constant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sslengine.contrib.domains import leave_one_domain_out
from sslengine.engines.protocols import run_protocols
from sslengine.evaluation.dense import dense
from sslengine.evaluation.few_shot import few_shot_logistic
from sslengine.evaluation.linear import linear_probe
from sslengine.evaluation.linear_many import linear_probe_of_many
from sslengine.evaluation.options import LinearProbeOptions, SegmentationOptions, SvmOptions
from sslengine.evaluation.outcome import note_choice
from sslengine.evaluation.segmentation import segmentation

LABELS = torch.arange(90) % 3
ROWS = torch.eye(3, dtype=torch.int8)[LABELS]
SAME = torch.ones(90, 4)
TOLD = SAME + torch.eye(3, 4)[LABELS] + 0.01 * torch.randn(90, 4, generator=torch.Generator().manual_seed(0))  # fmt: skip
PROBE = LinearProbeOptions(PENALTIES=[1.0, 0.1])  # each of two is an end
MACHINES = SvmOptions()
MACHINES.costs.costs_list = [0.1, 1.0]
MACHINES.low_shot.k_values = [5]
MASKS = LABELS.view(10, 3, 3).repeat_interleave(2, 1).repeat_interleave(2, 2)
Notes = Callable[[torch.Tensor], tuple[str, ...]]


def _protocol(name: str) -> Notes:
    def notes(features: torch.Tensor) -> tuple[str, ...]:
        sets = features, LABELS, features, LABELS
        return tuple(run_protocols(sets, [name], MACHINES, PROBE)[name]["notes"])

    return notes


def _maps(features: torch.Tensor) -> Any:
    return features.view(10, 3, 3, 4).permute(0, 3, 1, 2).contiguous()


NAMES = ("few_labels", "svm", "low_shot_svm", "calibration", "per_class")
NOTES: dict[str, Notes] = {
    **{name: _protocol(name) for name in NAMES},
    "few_shot_linear": lambda rows: (
        few_shot_logistic(*(rows, LABELS) * 2, shots=[5], draws=1, options=PROBE).notes
    ),
    "linear": lambda rows: linear_probe(rows, LABELS, rows, LABELS, PROBE).notes,
    "linear_many": lambda rows: linear_probe_of_many(rows, ROWS, rows, ROWS, PROBE).notes,
    "domains": lambda rows: (
        leave_one_domain_out(*(rows, LABELS, [*range(2)] * 45) * 2, PROBE).notes
    ),
    "dense": lambda rows: dense(_maps(rows), MASKS, _maps(rows), MASKS).notes,
}


@pytest.mark.parametrize("name", NOTES)
def test_an_end_and_a_constant_answer_are_notes_of_each(name: str) -> None:
    """Features that tell nothing, then those that tell all."""
    notes = " ".join(NOTES[name](SAME))
    assert "is an end of those tried" in notes
    assert "answers are the same" in notes
    assert "answers are the same" not in " ".join(NOTES[name](TOLD))


def test_a_trained_head_has_no_grid_and_may_be_constant() -> None:
    options = SegmentationOptions(ITERATIONS=20, BATCH=4, LR=0.1)
    for rows, constant in ((SAME, True), (TOLD, False)):
        found = segmentation(_maps(rows), MASKS, _maps(rows), [*MASKS], options)
        assert any("answers are the same" in each for each in found.notes) == constant
        assert found.metrics["constant accuracy"] == pytest.approx(100 / 3)


@pytest.mark.parametrize(
    ("chosen", "grid", "answers", "count"),
    [
        ([10.0], [0.1, 1.0, 10.0], [3, 2], 1),
        ([0.1, 10.0, 0.1, 1.0], [0.1, 1.0, 10.0], [3, 2], 2),  # of several draws each end once
        ([1.0], [0.1, 1.0, 10.0], [3, 2], 0),
        ([1.0], [1.0], [3, 2], 0),  # one value is no choice
        ([], [0.1, 1.0], [0, 5], 1),
        ([], [0.1, 1.0], [0, 1], 0),  # a single answer
    ],
)
def test_what_is_noted(
    chosen: list[float], grid: list[float], answers: list[int], count: int
) -> None:
    assert len(note_choice(chosen, grid, torch.tensor(answers))) == count


@pytest.mark.parametrize(("side", "coarse"), [(3, True), (5, False)])
def test_a_coarse_map_is_a_note(side: int, coarse: bool) -> None:
    maps = torch.randn(6, 4, side, side, generator=torch.Generator().manual_seed(0))
    masks = (maps[:, 0] > 0).long()
    options = SegmentationOptions(ITERATIONS=2)
    for found in (dense(maps, masks, maps, masks), segmentation(maps, masks, maps, [*masks], options)):  # fmt: skip
        assert any("too coarse" in each for each in found.notes) == coarse
