"""A linear head trained on maps: against the loop of its formulas, scikit-learn, and easy masks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, jaccard_score
from torch import Tensor, nn

from sslengine.contrib import segmentation as module
from sslengine.contrib.segmentation import NONE, enlarged, rate, segmentation, train_head
from sslengine.evaluate.options import SegmentationOptions

SHORT = SegmentationOptions(ITERATIONS=150, BATCH=4, LR=0.05)


def _halves(count: int, seed: int, size: tuple[int, int] = (16, 20)) -> tuple[Tensor, Tensor]:
    """A map of 8 x 10 says which of two classes, 3 and 7, is on which side of a vertical edge."""
    draw = torch.Generator().manual_seed(seed)
    edges = torch.randint(2, 9, (count,), generator=draw)
    kinds = (torch.arange(10) >= edges[:, None])[:, None].expand(-1, 8, -1).long()
    noise = 0.3 * torch.randn(count, 6, 8, 10, generator=draw)
    masks = torch.tensor([3, 7])[kinds]
    large = torch.nn.functional.interpolate(masks[:, None].float(), size=size)[:, 0]
    return torch.eye(2, 6)[kinds].permute(0, 3, 1, 2) + noise, large.int()


def test_easy_masks_are_learnt() -> None:
    """Test masks have their own sizes; of them alone mIoU is scikit-learn's."""
    maps, masks = _halves(20, 0)
    few = [_halves(5, 1), _halves(5, 2, (40, 30))]
    test, wanted = torch.cat([each for each, _ in few]), [*few[0][1], *few[1][1]]
    found = segmentation(maps, masks, test, wanted, SHORT)
    assert found.metrics["mIoU"] > 95
    assert found.details["ITERATIONS"] == 150
    places = torch.where(masks == 3, 0, 1)
    head = train_head(maps, places, 2, SHORT)
    answers = [
        torch.tensor([3, 7])[enlarged(head(each[None]), mask.shape)[0].argmax(dim=0)].flatten()
        for each, mask in zip(test, wanted)
    ]
    own, truth = (torch.cat(each).numpy() for each in (answers, [m.flatten() for m in wanted]))
    iou = jaccard_score(truth, own, average="macro")
    assert found.metrics["mIoU"] == pytest.approx(100 * iou, rel=1e-9)
    assert found.metrics["accuracy"] == pytest.approx(100 * accuracy_score(truth, own))


def test_the_same_each_time_and_no_stream_is_touched() -> None:
    maps, masks = _halves(6, 0)
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    one = segmentation(maps, masks, maps, [*masks], SHORT)
    assert torch.rand(1) == wanted
    torch.manual_seed(6)
    assert segmentation(maps, masks, maps, [*masks], SHORT) == one


def test_ignored_pixels_neither_train_nor_count() -> None:
    maps, masks = _halves(12, 0)
    hidden = masks.clone()
    hidden[:, :3] = 255
    hidden[:4] = 255  # whole images, which may be a whole batch
    found = segmentation(maps, hidden, maps, [*hidden], SHORT)
    assert found.metrics["mIoU"] > 95
    assert found.details["classes"] == 2
    nothing = segmentation(maps, masks, maps, [*torch.full_like(masks, 255)], SHORT)
    assert nothing.metrics == {}
    assert "all pixels of the masks of TEST are ignored" in nothing.notes[0]
    one = segmentation(maps, masks, maps, [*masks], SHORT, ignored=(7, 255))
    assert "the masks of TRAIN have 1 classes" in one.notes[0]
    broken = segmentation(maps * math.nan, masks, maps, [*masks], SHORT)
    assert not broken.metrics
    assert broken.notes


def test_a_class_of_the_test_masks_alone_is_never_right() -> None:
    maps, masks = _halves(12, 0)
    other = torch.where(masks == 7, 9, masks)
    found = segmentation(maps, masks, maps, [*other], SHORT)
    assert found.details["classes"] == 3
    assert 40 < found.metrics["mIoU"] < 50


def test_the_training_is_that_of_the_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, without dropout: normalisation, enlarging by a matrix, cross entropy, the gradient's
    length of at most 0.05, AdamW."""
    monkeypatch.setattr(module, "DROPOUT", 0.0)
    monkeypatch.setattr(module, "CLIP", 0.05)
    options = SegmentationOptions(ITERATIONS=12, BATCH=9, LR=0.05, WEIGHT_DECAY=0.3)
    maps, masks = _halves(5, 0)
    places = torch.where(masks == 3, 0, 1)
    places[0, :4] = NONE
    draw = torch.Generator().manual_seed(0)
    weight = (0.01 * torch.randn(2, 6, 1, 1, generator=draw)).double().view(2, 6)
    learnt = [torch.ones(6).double(), torch.zeros(6).double(), weight, torch.zeros(2).double()]
    first, second = ([torch.zeros_like(each) for each in learnt] for _ in range(2))
    means, spread = torch.zeros(6).double(), torch.ones(6).double()
    pixels = maps.double().permute(0, 2, 3, 1).reshape(-1, 6)
    up = [_matrix(a, b) for a, b in ((8, 16), (10, 20))]
    for step in range(12):
        for each in learnt:
            each.requires_grad_().grad = None
        mean, variance = pixels.mean(dim=0), pixels.var(dim=0, unbiased=False)
        means = 0.9 * means + 0.1 * mean
        spread = 0.9 * spread + 0.1 * pixels.var(dim=0)
        unit = (pixels - mean) / (variance + 1e-5).sqrt() * learnt[0] + learnt[1]
        logits = (unit @ learnt[2].T + learnt[3]).view(5, 8, 10, 2)
        large = torch.einsum("yh,xw,nhwc->nyxc", up[0], up[1], logits)
        known = places != NONE
        chosen = large.log_softmax(dim=-1)[known].gather(1, places[known][:, None])
        chosen.mean().neg().backward()
        grads: list[Any] = [each.grad for each in learnt]
        length = math.sqrt(sum(float((each**2).sum()) for each in grads))
        grads = [each * min(1.0, 0.05 / (length + 1e-6)) for each in grads]
        learning = 0.05 * rate(step, 12)
        with torch.no_grad():
            for number, each in enumerate(learnt):
                first[number] = 0.9 * first[number] + 0.1 * grads[number]
                second[number] = 0.999 * second[number] + 0.001 * grads[number] ** 2
                moved = first[number] / (1 - 0.9 ** (step + 1))
                scale = (second[number] / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
                learnt[number] = each * (1 - learning * 0.3) - learning * moved / scale
    unit = (pixels - means) / (spread + 1e-5).sqrt() * learnt[0] + learnt[1]
    wanted = (unit @ learnt[2].T + learnt[3]).view(5, 8, 10, 2).permute(0, 3, 1, 2)
    found = train_head(maps, places, 2, options)(maps)
    torch.testing.assert_close(found.double(), wanted, rtol=2e-3, atol=2e-3)
    assert wanted.std() > 0.05


def _matrix(small: int, large: int) -> Tensor:
    """Of linear interpolation between the centres of places."""
    at = ((torch.arange(large).double() + 0.5) * small / large - 0.5).clamp(0, small - 1)
    return (1 - (at[:, None] - torch.arange(small)).abs()).clamp(min=0)


def test_dropout_comes_before_the_normalisation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in DINOv3's head: the statistics are of channels that may be dropped."""
    seen: list[Tensor] = []

    def normalised(self: nn.BatchNorm2d, maps: Tensor) -> Tensor:
        seen.append(maps)
        return maps

    monkeypatch.setattr(nn.BatchNorm2d, "forward", normalised)
    monkeypatch.setattr(module, "DROPOUT", 0.5)
    maps, masks = (each[:1].repeat_interleave(8, dim=0) for each in _halves(1, 0))
    options = SegmentationOptions(ITERATIONS=3, BATCH=8)
    train_head(maps, torch.where(masks == 3, 0, 1), 2, options)(maps)
    *steps, answering = seen
    assert torch.equal(answering, maps)
    for each in steps:
        dropped = each.flatten(2).eq(0).all(dim=2)  # whole channels of an image
        assert 0.2 < dropped.float().mean() < 0.8
        torch.testing.assert_close(each[~dropped], 2 * maps[~dropped])


def test_the_rate_rises_and_falls() -> None:
    """DINOv3's configuration: 1,500 of 40,000 steps up, then a half wave to 0."""
    found = np.array([rate(step, 40_000) for step in range(40_000)])
    assert found[0] == pytest.approx(1e-6)
    assert found[750] == pytest.approx(0.5 * (1 - 750 / 40_000), rel=1e-5)
    assert found[1500] == pytest.approx((1 + math.cos(math.pi * 1501 / 40_000)) / 2)
    assert found.argmax() == 1500
    assert found[-1] == 0
    assert [rate(step, 1) for step in range(1)] == [pytest.approx(1e-6)]
