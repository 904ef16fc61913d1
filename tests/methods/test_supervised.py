"""The supervised losses against their formulas in float64, and against torch's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from sslengine.config.facts import RunFacts
from sslengine.methods.supervised import (
    BinaryCrossEntropyLoss,
    BinaryCrossEntropyOptions,
    CrossEntropyLoss,
    CrossEntropyOptions,
)

RUN = RunFacts()


def _logits(rows: int = 5, classes: int = 3, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, classes, generator=generator, dtype=torch.float64, requires_grad=True)


def _cross_entropy(row: list[float], probabilities: list[float]) -> float:
    log_sum = math.log(sum(math.exp(value) for value in row))
    return -sum(p * (value - log_sum) for p, value in zip(probabilities, row, strict=True))


def test_class_numbers_with_one_to_ignore_and_smoothing() -> None:
    loss = CrossEntropyLoss(CrossEntropyOptions(label_smoothing=0.2, temperature=0.5), RUN)
    logits, target = _logits(), torch.tensor([0, 2, -1, 1, 1])
    terms = []
    for row, label in zip(logits.tolist(), target.tolist(), strict=True):
        if label != -1:
            smooth = [0.2 / 3 + (0.8 if c == label else 0.0) for c in range(3)]
            terms.append(_cross_entropy([value / 0.5 for value in row], smooth))
    assert loss(logits, target).item() == pytest.approx(sum(terms) / 4, rel=1e-12)


def test_probabilities_as_targets() -> None:
    logits = _logits()
    target = torch.softmax(_logits(seed=1).detach(), dim=1)
    rows = zip(logits.tolist(), target.tolist(), strict=True)
    expected = sum(_cross_entropy(row, p) for row, p in rows) / 5
    assert CrossEntropyLoss(CrossEntropyOptions(), RUN)(logits, target).item() == pytest.approx(
        expected, rel=1e-12
    )


def test_normalised_outputs_are_cosines() -> None:
    loss = CrossEntropyLoss(CrossEntropyOptions(normalize_output=True, temperature=0.1), RUN)
    logits, target = _logits(), torch.tensor([0, 1, 2, 0, 1])
    unit = [[v / math.hypot(*row) / 0.1 for v in row] for row in logits.tolist()]
    one_hot = [[float(c == label) for c in range(3)] for label in target.tolist()]
    expected = sum(map(_cross_entropy, unit, one_hot)) / 5
    assert loss(logits, target).item() == pytest.approx(expected, rel=1e-12)


def test_several_outputs_add_up_and_class_weights_count() -> None:
    loss = CrossEntropyLoss(CrossEntropyOptions(weight=[1.0, 2.0, 0.5]), RUN)
    target = torch.tensor([0, 1, 2, 0, 1])
    outputs = [_logits(seed=s).float() for s in (0, 1)]
    theirs = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))
    expected = sum(theirs(output, target) for output in outputs)
    torch.testing.assert_close(loss(outputs, target), expected)
    assert list(loss.state_dict()) == []


def test_binary_averages_each_class_over_the_known_labels_and_adds_classes() -> None:
    loss = BinaryCrossEntropyLoss(BinaryCrossEntropyOptions(), RUN)
    logits = _logits(rows=4)
    target = torch.tensor([[1, 0, -1], [0, 1, -1], [1, -1, -1], [0, 0, -1]])
    expected = 0.0
    for c in range(3):
        terms = []
        for row, labels in zip(logits.tolist(), target.tolist(), strict=True):
            if labels[c] != -1:
                p = 1 / (1 + math.exp(-row[c]))
                terms.append(-math.log(p if labels[c] == 1 else 1 - p))
        expected += sum(terms) / len(terms) if terms else 0.0
    value = loss(logits, target)
    assert value.item() == pytest.approx(expected, rel=1e-12)
    value.backward()
    assert torch.equal(logits.grad[:, 2], torch.zeros(4, dtype=torch.float64))


def test_binary_sums_outputs_and_normalises_if_asked() -> None:
    target = torch.tensor([[1.0, 0.0, 1.0]])
    once = BinaryCrossEntropyLoss(BinaryCrossEntropyOptions(normalize_output=True), RUN)
    logits = _logits(rows=1)
    plain = BinaryCrossEntropyLoss(BinaryCrossEntropyOptions(), RUN)
    expected = 2 * plain(logits / logits.norm(), target)
    torch.testing.assert_close(once([logits, logits], target), expected)
