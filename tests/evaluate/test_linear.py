"""The linear probe against another minimiser of the written-out objective."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate import linear
from sslengine.evaluate.linear import FIXED_PENALTY, linear_probe
from sslengine.evaluate.options import LinearProbeOptions


def noisy(count: int, seed: int, dims: int = 40, classes: int = 3) -> tuple[Tensor, Tensor]:
    """A little signal in many noisy features of unlike scales: the penalty matters."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes, count)
    centres = np.random.default_rng(7).normal(size=(classes, dims))
    features = 0.4 * centres[labels] + draw.normal(size=(count, dims))
    return torch.from_numpy(5 + features * np.logspace(-2, 2, dims)), torch.from_numpy(labels)


def only(penalty: float) -> LinearProbeOptions:
    return LinearProbeOptions(PENALTIES=[penalty])


TRAIN, TEST = noisy(120, seed=0), noisy(2000, seed=1)


def written_out(penalty: float) -> float:
    """The test accuracy of the minimiser, in percent."""
    (features, labels), (asked, truth) = TRAIN, TEST
    mean, deviation = features.mean(0), features.std(0, correction=0)
    x, z = (features - mean) / deviation, (asked - mean) / deviation

    def objective(flat: Any) -> tuple[float, Any]:
        w = torch.tensor(flat, requires_grad=True)
        weight, bias = w[:-3].view(3, -1), w[-3:]
        log_p = torch.log_softmax(x @ weight.T + bias, dim=1)
        loss = -log_p[torch.arange(len(x)), labels].mean() + penalty / 2 * weight.square().sum()
        loss.backward()
        assert w.grad is not None
        return loss.item(), w.grad.numpy()

    found = minimize(objective, np.zeros(3 * 41), jac=True, method="BFGS", tol=1e-9)
    weight, bias = torch.tensor(found.x[:-3]).view(3, -1), torch.tensor(found.x[-3:])
    return 100 * ((z @ weight.T + bias).argmax(1) == truth).double().mean().item()


def test_the_accuracy_is_that_of_the_minimiser() -> None:
    penalties = (1.0, 0.1, 0.01)
    expected = [written_out(penalty) for penalty in penalties]
    assert max(expected) - min(expected) > 1  # the penalty matters
    found = [linear_probe(*TRAIN, *TEST, only(each)).test_accuracy for each in penalties]
    # One of 2000 test samples may lie on the border.
    assert found == pytest.approx(expected, abs=0.05)


def test_the_penalty_is_chosen_without_the_test_samples() -> None:
    honest = linear_probe(*TRAIN, *TEST)
    other = linear_probe(*TRAIN, TEST[0], TEST[1].flip(0))
    assert (other.penalty, other.held_out_accuracy) == (honest.penalty, honest.held_out_accuracy)
    assert other.test_accuracy < honest.test_accuracy


def test_a_penalty_that_helps_is_chosen() -> None:
    """With 40 noisy features and 120 samples, next to no penalty learns the noise."""
    probe = linear_probe(*TRAIN, *TEST, LinearProbeOptions(PENALTIES=[1e-6, 0.3]))
    assert probe.penalty == 0.3
    assert probe.test_accuracy > linear_probe(*TRAIN, *TEST, only(1e-6)).test_accuracy


def test_all_penalties_are_tried_on_one_path(monkeypatch: pytest.MonkeyPatch) -> None:
    penalties = [0.001, 10.0, 1.0, 0.1, 0.3, 0.01, 3.0]
    alone = [linear_probe(*TRAIN, *TEST, only(each)).held_out_accuracy for each in penalties]
    paths: list[int] = []

    def fit_path(samples: Any, penalties: list[float], *others: Any) -> Any:
        paths.append(len(penalties))
        return real(samples, penalties, *others)

    real = linear.fit_path
    monkeypatch.setattr(linear, "fit_path", fit_path)
    for on, size in (("mean", 1), ("sum", 96)):
        options = LinearProbeOptions([size * each for each in penalties], on)
        probe = linear_probe(*TRAIN, *TEST, options)
        assert probe.held_out_accuracy == max(alone)
        assert probe.penalty == size * max(p for p, a in zip(penalties, alone) if a == max(alone))
    assert paths == [7, 7]


def test_features_of_any_shape_are_flattened_and_constant_ones_do_no_harm() -> None:
    (features, labels), (asked, truth) = TRAIN, TEST
    widened = torch.cat([features, torch.full((len(features), 1), 3.0)], dim=1)
    asked = torch.cat([asked, torch.full((len(asked), 1), 3.0)], dim=1)
    plain = linear_probe(*TRAIN, *TEST, only(0.1))
    shaped = (widened[:, :, None, None], labels, asked[:, :, None, None], truth)
    assert linear_probe(*shaped, only(0.1)).test_accuracy == pytest.approx(
        plain.test_accuracy, abs=0.05
    )


def test_too_few_iterations_are_told() -> None:
    probe = linear_probe(*TRAIN, *TEST, LinearProbeOptions(PENALTIES=[1e-4], MAX_ITERATIONS=2))
    assert "config.LINEAR_PROBE.MAX_ITERATIONS" in probe.notes[-1]
    assert not linear_probe(*TRAIN, *TEST, only(0.1)).notes


def test_one_class_cannot_be_learned() -> None:
    features = torch.arange(8.0).view(4, 2)
    with pytest.raises(DataError, match="Linear probe: the 4 training labels are all the same"):
        linear_probe(features, torch.zeros(4, dtype=torch.long), features, torch.zeros(4))


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([0, 0, 0, 1], "chosen by 1 held-out samples, .* except the 1 with a single sample"),
        ([0, 0, 1, 1], "chosen by 2 held-out samples, at least one of each class$"),
        ([0, 1, 2, 3], "no class has two samples, so none is held out; the penalty is 0.01"),
    ],
)
def test_few_labels_are_held_out_where_there_are_two(labels: list[int], told: str) -> None:
    """A class of one sample; two of two; nothing to choose the penalty by."""
    features = 10.0 * torch.nn.functional.one_hot(torch.tensor(labels), 4)
    features = features + torch.arange(16.0).view(4, 4) / 16
    found = linear_probe(features, torch.tensor(labels), features, torch.tensor(labels))
    assert re.search(told, found.notes[0])
    assert found.test_accuracy >= 75.0
    assert (found.penalty == FIXED_PENALTY) == ("no class" in told)
    assert (found.held_out_accuracy >= 0) == ("no class" not in told)  # NaN otherwise


def _of_groups(counts: list[int]) -> Tensor:
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))


def test_groups_are_held_out_whole() -> None:
    groups = _of_groups([5] * 24)
    found = linear_probe(*TRAIN, *TEST, groups=groups)
    assert found.chosen_on.endswith("of 120 training images in whole groups")
    labels = TRAIN[1].numpy()
    used, held, _ = linear.hold_out(labels, 0.2, groups)
    assert not set(groups[used].tolist()) & set(groups[held].tolist())
    assert sorted([*used, *held]) == list(range(120))
    assert 15 <= len(held) <= 33
    assert set(labels[held]) == set(labels)


def test_few_groups_and_few_images() -> None:
    labels = np.array([0, 0, 1, 1, 2])
    used, held, note = linear.hold_out(labels, 0.2, torch.tensor([0, 0, 0, 1, 1]))
    assert (list(used), list(held)) in (([0, 1, 2], [3, 4]), ([3, 4], [0, 1, 2]))
    assert note == ""
    with pytest.raises(DataError, match="GROUP_COLUMN: all training images have the same value"):
        linear.hold_out(labels, 0.2, torch.zeros(5))
    used, held, note = linear.hold_out(np.arange(3), 0.2, torch.arange(3))
    assert len(held) == 0
    assert "no class has two samples" in note
