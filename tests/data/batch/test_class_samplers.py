"""Batches by class: counts against the definitions, frequencies against the formula."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sslengine.data.batch.samplers import (
    ClassBatchSampler,
    PowerLawBatchSampler,
    StratifiedBatchSampler,
    members_of_classes,
)
from sslengine.data.options import PowerLawSampler, SplitOptions, StratifiedSampler
from sslengine.errors import DataError
from tests.data.batch.test_samplers import global_batches

# Twelve classes of 3 to 36 images, in no order; their numbers have gaps.
LABELS = np.random.default_rng(0).permutation(
    np.repeat(np.arange(12) * 5 - 2, np.arange(1, 13) * 3)
)

Make = Callable[..., list[ClassBatchSampler]]


def stratified(
    batch: int, ranks: int = 1, seed: int = 0, labels: Any = LABELS, **keys: Any
) -> list[ClassBatchSampler]:
    chosen = StratifiedSampler(ENABLED=True, **{"STEP_PER_EPOCH": 9, **keys})
    options = SplitOptions(BATCHSIZE_PER_REPLICA=batch, STRATIFIED_SAMPLER=chosen)
    return [
        StratifiedBatchSampler([labels], options, rank, ranks, seed, "config.DATA.TRAIN")
        for rank in range(ranks)
    ]


def power_law(
    batch: int, ranks: int = 1, seed: int = 0, power: float = 1.0, labels: Any = LABELS
) -> list[ClassBatchSampler]:
    options = SplitOptions(
        BATCHSIZE_PER_REPLICA=batch, POWER_LAW_SAMPLER=PowerLawSampler(True, power)
    )
    return [
        PowerLawBatchSampler([labels], options, rank, ranks, seed, "config.DATA.TRAIN")
        for rank in range(ranks)
    ]


def test_a_batch_has_so_many_classes_and_as_many_images_of_each() -> None:
    (sampler,) = stratified(12, CLASSES_PER_BATCH=4)
    batches = global_batches([sampler], epoch=2)
    assert len(batches) == 9
    for batch in batches:
        classes = LABELS[batch]
        assert Counter(Counter(classes.tolist()).values()) == {3: 4}
        assert len(set(batch)) == 12  # no image twice
        np.testing.assert_array_equal(classes.reshape(3, 4), classes[:4][None].repeat(3, 0))


def test_every_class_comes_before_one_comes_again() -> None:
    (sampler,) = stratified(8, CLASSES_PER_BATCH=4)
    batches = global_batches([sampler])
    for first in (0, 3, 6):
        seen = [each for batch in batches[first : first + 3] for each in set(LABELS[batch])]
        assert sorted(seen) == sorted(set(LABELS))


@pytest.mark.parametrize("unique", [False, True])
def test_ranks_have_the_same_classes_or_each_its_own(unique: bool) -> None:
    samplers = stratified(8, 3, CLASSES_PER_BATCH=4, UNIQUE_CLASSES=unique)
    for batches in zip(*samplers, strict=True):
        classes = [{int(LABELS[row]) for _, row in batch} for batch in batches]
        assert [len(each) for each in classes] == [4, 4, 4]
        assert len(set.union(*classes)) == (12 if unique else 4)
        rows = [row for batch in batches for _, row in batch]
        if not unique and all(len(LABELS[each == LABELS]) >= 6 for each in classes[0]):
            assert len(set(rows)) == 24


def test_a_class_with_fewer_images_than_asked_for_gives_each_as_often_as_it_comes() -> None:
    labels = np.array([0, 0, 1, 1, 1, 1, 1, 1, 1, 1])
    (sampler,) = stratified(10, labels=labels, CLASSES_PER_BATCH=2)
    for batch in global_batches([sampler]):
        assert sorted(Counter(row for row in batch if row < 2).values()) == [2, 3]
        assert sorted(Counter(row for row in batch if row >= 2).values()) == [1] * 5


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0, -1.0])
def test_classes_come_as_often_as_the_formula_says(power: float) -> None:
    """Counts of each class lie within 5 standard deviations of a binomial's mean."""
    (sampler,) = power_law(39, power=power)  # 6 steps an epoch
    drawn = 0
    counts = np.zeros(12)
    for epoch in range(60):
        rows = np.array(global_batches([sampler], epoch))
        drawn += rows.size
        counts += np.bincount((LABELS[rows].ravel() + 2) // 5, minlength=12)
    if power < 0:
        expected = np.sqrt(np.arange(1, 13) * 3)
        chances = expected / expected.sum()
        order = np.arange(12)
    else:
        falling = 1 / (1 + np.arange(12.0)) ** power
        chances = falling / falling.sum()
        order = np.argsort(-counts, kind="stable")  # which class has which chance is random
    deviation = np.sqrt(drawn * chances * (1 - chances))
    assert (np.abs(counts[order] - drawn * chances) < 5 * deviation).all()


def test_a_power_law_epoch_is_as_many_images_as_there_are_and_no_image_twice_in_a_batch() -> None:
    (sampler,) = power_law(10, power=0.0)
    batches = global_batches([sampler])
    assert len(batches) == len(LABELS) // 10
    counts = [Counter(batch) for batch in batches]
    for count in counts:
        for row, times in count.items():
            of_class = LABELS[row] == LABELS
            drawn = sum(of_class[each] * n for each, n in count.items())
            assert times == 1 or drawn > of_class.sum()


def test_classes_are_told_apart_by_their_numbers() -> None:
    members = members_of_classes([np.array([7, -2, 7, 0, -2])], "here")
    assert [each.tolist() for each in members] == [[1, 4], [3], [0, 2]]
    members = members_of_classes([np.array([7, -1, 7, 0, -1])], "here")  # -1: no class is known
    assert [each.tolist() for each in members] == [[3], [0, 2]]


@pytest.mark.parametrize("labels", [[], [np.zeros((4, 3))], [np.full(4, -1)]])
def test_without_a_class_for_each_image(labels: list[Any]) -> None:
    with pytest.raises(DataError, match="need LABEL_SOURCES with one class for each image"):
        members_of_classes(labels, "config.DATA.TRAIN")


def test_more_classes_than_there_are() -> None:
    with pytest.raises(DataError, match=r"is to hold 13 classes; the dataset has 12"):
        stratified(13, CLASSES_PER_BATCH=13)
    with pytest.raises(DataError, match=r"16 classes, 8 on each of 2 ranks; .* has 12"):
        stratified(8, 2, CLASSES_PER_BATCH=8, UNIQUE_CLASSES=True)
