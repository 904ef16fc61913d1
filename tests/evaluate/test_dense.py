"""Segmentation by frozen patches, against scikit-learn and masks made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, jaccard_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from sslengine.evaluate.dense import PENALTIES, Confusion, Patches, dense


def test_jaccard_is_that_of_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    wanted, answers = draw.choice([0, 2, 5, 255], size=500), draw.choice([0, 2, 7], size=500)
    found = Confusion(torch.tensor([0, 2, 5, 7]))
    for part in (slice(0, 200), slice(200, 500)):
        found.add(torch.from_numpy(answers[part]), torch.from_numpy(wanted[part]))
    known = wanted != 255
    expected = jaccard_score(wanted[known], answers[known], labels=[0, 2, 5], average="macro")
    assert found.miou == pytest.approx(100 * expected, rel=1e-12)
    assert found.accuracy == pytest.approx(100 * accuracy_score(wanted[known], answers[known]))


def test_patches_of_a_mask_by_hand() -> None:
    mask = torch.tensor([[[1, 1, 9, 9], [1, 2, 9, 9], [3, 3, 4, 4], [3, 3, 4, 255]]])
    maps = torch.tensor([[[[10.0, 20.0], [30.0, 40.0]]]])
    found = Patches.cut(maps, mask)
    assert found.features.tolist() == [[10], [20], [30], [40]]
    assert found.pixels.tolist() == [[1, 1, 1, 2], [9, 9, 9, 9], [3, 3, 3, 3], [4, 4, 4, 255]]
    assert found.most_frequent((9, 255)).tolist() == [1, -1, 3, 4]


def _images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A patch is a left half, a right half, or neither; its feature says which."""
    draw = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, 3, (count, 3, 3), generator=draw)
    patches = torch.tensor([[[0, 0], [0, 0]], [[1, 0], [1, 0]], [[0, 1], [0, 1]]])[kinds]
    masks = patches.permute(0, 1, 3, 2, 4).reshape(count, 6, 6)
    return torch.eye(3)[kinds].permute(0, 3, 1, 2), masks


def _as_rows(maps: torch.Tensor, masks: torch.Tensor) -> tuple[Any, Any, Any]:
    """Of 2 x 2 pixels: features, pixels and numbers of the images of all patches."""
    count, width, high, wide = maps.shape
    features = maps.permute(0, 2, 3, 1).reshape(-1, width).numpy()
    parts = masks.numpy().reshape(count, high, 2, wide, 2).transpose(0, 1, 3, 2, 4)
    return features, parts.reshape(-1, 4), np.repeat(np.arange(count), high * wide)


def _noisy(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Maps that say roughly what the masks of four classes show, in steps of a patch and within."""
    draw = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, 4, (count, 5, 5), generator=draw)
    masks = kinds.repeat_interleave(2, 1).repeat_interleave(2, 2)
    other = torch.randint(0, 4, masks.shape, generator=draw)
    masks = torch.where(torch.rand(masks.shape, generator=draw) < 0.15, other, masks)
    noise = 0.7 * torch.randn(count, 6, 5, 5, generator=draw)
    return torch.eye(4, 6)[kinds].permute(0, 3, 1, 2) + noise, masks


def test_the_whole_protocol_is_that_of_scikit_learn() -> None:
    """What is chosen on the held-out images, and the answers for the test images, pixel by pixel."""
    known, judged = _noisy(30, 0), _noisy(8, 1)
    found = dense(*known, *judged)
    features, pixels, image = _as_rows(*known)
    tested, wanted, _ = _as_rows(*judged)
    scale = StandardScaler().fit(features)
    features, tested = (scale.transform(each) for each in (features, tested))
    held = torch.randperm(30, generator=torch.Generator().manual_seed(0))[:3].numpy()
    inside = np.isin(image, held)

    def knn(k: int, metric: str, some: Any, rows: Any) -> Any:
        """A vote for each pixel of a patch; of equal ones the lowest class."""
        name = {"euclid": "euclidean"}.get(metric, metric)
        judge = KNeighborsClassifier(k, metric=name, algorithm="brute")
        return judge.fit(features[some], pixels[some]).predict(rows)

    def linear(penalty: float, some: Any, rows: Any) -> Any:
        most = stats.mode(pixels[some], axis=1).mode
        judge = LogisticRegression(C=1 / penalty, tol=1e-8, max_iter=5000)
        return np.repeat(judge.fit(features[some], most).predict(rows)[:, None], 4, 1)

    def miou(answers: Any, truth: Any) -> float:
        shown = np.unique(truth)
        return 100 * jaccard_score(truth.ravel(), answers.ravel(), labels=shown, average="macro")

    every = np.full(len(image), True)
    settings = [(k, metric) for metric in ("cosine", "euclid") for k in (1, 3, 10, 30)]
    tried = {each: miou(knn(*each, ~inside, features[inside]), pixels[inside]) for each in settings}
    assert found.details["kNN"] == max(tried, key=lambda each: tried[each])
    answers = knn(*found.details["kNN"], every, tested)
    assert found.metrics["kNN mIoU"] == pytest.approx(miou(answers, wanted), rel=1e-9)
    assert found.metrics["kNN accuracy"] == pytest.approx(100 * (answers == wanted).mean())
    scored = {each: miou(linear(each, ~inside, features[inside]), pixels[inside])
              for each in PENALTIES}  # fmt: skip
    chosen = found.details["linear"]
    # Fitted in single precision: a patch on the boundary may be answered otherwise.
    assert scored[chosen] > max(scored.values()) - 1
    answers = linear(chosen, every, tested)
    assert found.metrics["linear mIoU"] == pytest.approx(miou(answers, wanted), abs=1)
    assert found.metrics["linear accuracy"] == pytest.approx(
        100 * (answers == wanted).mean(), abs=1
    )
    assert 30 < found.metrics["linear mIoU"] < 90


def test_ignored_pixels_neither_vote_nor_count() -> None:
    maps, masks = _images(20, 0)
    others, judged = _images(6, 1)
    train = torch.where(torch.rand(masks.shape) < 0.1, 255, masks)
    test = torch.where(torch.arange(6) == 0, 255, judged)
    assert dense(maps, train, others, test).metrics["kNN mIoU"] == 100
    nothing = dense(maps, torch.full_like(masks, 255), others, judged)
    assert not nothing.metrics
    assert "all pixels of the masks are ignored" in nothing.notes[0]


def test_constant_features_and_a_single_image() -> None:
    maps, masks = _images(1, 0)
    found = dense(torch.ones_like(maps), masks, maps, masks)
    assert "k, distance and penalty are fixed" in found.notes[0]
    assert found.details["chosen_on"] == "nothing: it is fixed"
    assert 0 <= found.metrics["kNN mIoU"] < 100


def _objects(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A patch of four shows one of ten objects, the others the background; roughly told."""
    draw = torch.Generator().manual_seed(seed)
    which = (torch.arange(count) % 10 + 1)[torch.randperm(count, generator=draw)]
    kinds = torch.zeros(count, 4, dtype=torch.long)
    kinds[torch.arange(count), torch.randint(0, 4, (count,), generator=draw)] = which
    maps = torch.eye(11, 16)[kinds.view(count, 2, 2)].permute(0, 3, 1, 2)
    maps = maps + 0.6 * torch.randn(maps.shape, generator=draw)
    return maps, kinds.view(count, 2, 2).repeat_interleave(4, 1).repeat_interleave(4, 2)


def test_a_constant_answer_never_beats_one_that_is_right_on_one_class_more() -> None:
    """Whatever else it answers where the constant one is wrong, also of classes that no mask has."""
    draw = np.random.default_rng(0)
    for _ in range(200):
        wanted = draw.choice(5, size=60, p=draw.dirichlet(np.ones(5)))
        constant, other = draw.permutation(np.unique(wanted))[:2].repeat(2)[[0, -1]]
        if constant == other:
            continue
        answers = np.where(wanted == constant, constant, draw.integers(0, 12, size=60))
        answers[draw.choice(np.flatnonzero(wanted == other))] = other
        always, knowing = (Confusion(torch.arange(12)) for _ in range(2))
        always.add(torch.full((60,), int(constant)), torch.from_numpy(wanted))
        knowing.add(torch.from_numpy(answers), torch.from_numpy(wanted))
        assert knowing.miou > always.miou
        assert always.miou == pytest.approx(100 * (wanted == constant).mean() / len({*wanted}))
