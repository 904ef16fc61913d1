from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from sslengine.data.augment.transform import Sample
from sslengine.data.batch.collators import cutmixup_collator, multicrop_mixup_collator
from sslengine.errors import DataError
from tests.data.test_feed import equal, feed


def batch(views: int = 2, count: int = 4) -> list[Sample]:
    torch.manual_seed(0)
    return [
        {
            "data": [torch.rand(3, 8, 8) for _ in range(views)],
            "data_valid": [1] * views,
            "data_idx": [100 + number] * views,
            "label": [number % 3] * views,
        }
        for number in range(count)
    ]


def expected(samples: list[Sample], view: int, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mixup by its formula: each with the one from the end, labels smoothed by 0.1."""
    images = torch.stack([each["data"][view] for each in samples])
    labels = 0.9 * one_hot(torch.tensor([each["label"][view] for each in samples]), 3) + 0.1 / 3
    return (
        share * images + (1 - share) * images.flip(0),
        share * labels + (1 - share) * labels.flip(0),
    )


@pytest.mark.parametrize("method", [None, "simclr", "moco"])
def test_mixup_by_its_formula_for_each_view(method: str | None) -> None:
    samples = batch()
    np.random.seed(3)  # noqa: NPY002
    collated = cutmixup_collator(samples, ssl_method=method, num_classes=3)
    np.random.seed(3)  # noqa: NPY002
    shares = []
    for _ in range(2):
        np.random.rand()  # noqa: NPY002 (whether to mix at all)
        shares.append(np.random.beta(1.0, 1.0))  # noqa: NPY002
    assert shares[0] != shares[1]
    first, second = (expected(samples, view, share) for view, share in enumerate(shares))
    (data,), (labels,) = collated["data"], collated["label"]
    if method == "moco":
        torch.testing.assert_close(data, first[0])
        torch.testing.assert_close(collated["data_momentum"][0], second[0])
        torch.testing.assert_close(labels, first[1])
        assert collated["data_idx"][0].tolist() == [100, 101, 102, 103]
        return
    assert isinstance(data, torch.Tensor if method else list)
    torch.testing.assert_close(
        data if method else torch.cat(data), torch.cat([first[0], second[0]])
    )
    torch.testing.assert_close(labels, torch.cat([first[1], second[1]]))
    assert collated["data_idx"][0].tolist() == [100, 101, 102, 103] * 2


def test_cutmix_takes_pixels_from_one_or_the_other_as_the_labels_say() -> None:
    samples = batch(views=1)
    images = torch.stack([each["data"][0] for each in samples])
    pasted = set()
    for number in range(20):
        np.random.seed(number)  # noqa: NPY002
        collated = cutmixup_collator(
            samples, "simclr", mixup_alpha=0.0, cutmix_alpha=1.0, label_smoothing=0.0, num_classes=3
        )
        (mixed,), (labels,) = collated["data"], collated["label"]
        own, other = (mixed == images).all(1), (mixed == images.flip(0)).all(1)
        assert (own | other).all()
        share = own[0].float().mean()
        # Samples 0 and 3 are of one class, 1 and 2 of two.
        torch.testing.assert_close(labels[1], torch.tensor([0.0, share, 1 - share]))
        assert labels[0].tolist() == [1, 0, 0]
        pasted.add(float(share))
    assert len(pasted) > 5


MIXED: dict[str, Any] = {
    "TRANSFORMS": [{"name": "ToTensor"}],
    "LABEL_TYPE": "zero",
    "DROP_LAST": True,
    "COLLATE_FUNCTION": "cutmixup_collator",
    "COLLATE_FUNCTION_PARAMS": {"ssl_method": "simclr", "num_classes": 2, "cutmix_alpha": 1.0},
}


@pytest.mark.slow
def test_the_draws_depend_on_the_batch_and_not_on_the_process() -> None:
    alone, two = feed(0, **MIXED), feed(2, **MIXED)
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    first = list(alone.batches(1))
    assert equal(list(two.batches(1)), first)
    assert equal(list(alone.batches(1, 2)), first[2:])
    assert not equal(list(alone.batches(2)), first)
    assert not equal(list(feed(0, seed=4, **MIXED).batches(1)), first)
    two.close()


@pytest.mark.parametrize(
    ("count", "arguments", "message"),
    [
        (3, {}, "mixed in pairs, and a batch has 3"),
        (4, {"num_classes": 2}, "classes from 0 to 1, or .*; found 2. .*LABEL_TYPE: zero"),
        (4, {"mixup_alpha": 0.0}, "set one of mixup_alpha, cutmix_alpha and cutmix_minmax"),
    ],
)
def test_what_cannot_be_mixed(count: int, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        cutmixup_collator(batch(count=count), **{"num_classes": 3, **arguments})


def test_two_views_where_two_are_needed() -> None:
    with pytest.raises(DataError, match="'moco' needs two views of each image"):
        cutmixup_collator(batch(views=1), "moco", num_classes=3)


def test_pairs_of_images_become_one_crop_by_crop() -> None:
    samples = batch(views=3, count=6)
    np.random.seed(4)  # noqa: NPY002
    mixed = multicrop_mixup_collator(samples, beta=0.7)
    np.random.seed(4)  # noqa: NPY002
    share = np.random.beta(0.7, 0.7)  # noqa: NPY002
    (crops,) = mixed["data"]
    assert [len(crop) for crop in crops] == [3, 3, 3]
    for view, crop in enumerate(crops):
        for number, image in enumerate(crop):
            one, other = (samples[2 * number + k]["data"][view] for k in (0, 1))
            torch.testing.assert_close(image, one * share + other * (1 - share))
    assert mixed["data_idx"][0].tolist() == [100, 102, 104] * 3
    assert mixed["label"][0].tolist() == [0, 2, 1] * 3


def test_pairs_need_an_even_batch() -> None:
    with pytest.raises(DataError, match="mixed in pairs, and a batch has 3"):
        multicrop_mixup_collator(batch(count=3))


def test_rows_of_indicators_are_mixed_as_images_are() -> None:
    samples = batch(views=1)
    rows = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 0], [0, -1, 1]], dtype=torch.int8)
    for sample, row in zip(samples, rows, strict=True):
        sample["label"] = [row]
    images = torch.stack([each["data"][0] for each in samples])
    np.random.seed(3)  # noqa: NPY002
    np.random.rand()  # noqa: NPY002
    share = np.random.beta(1.0, 1.0)  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    collated = cutmixup_collator(samples, num_classes=3, label_smoothing=0.3)
    torch.testing.assert_close(
        collated["data"][0][0], share * images + (1 - share) * images.flip(0)
    )
    known = rows.clamp(min=0) * 0.7 + 0.1
    mixed = share * known + (1 - share) * known.flip(0)
    mixed[[0, 3], 1] = -1.0
    torch.testing.assert_close(collated["label"][0], mixed.float())
    with pytest.raises(DataError, match=r"or rows of 4 indicators; found \(3,\)"):
        cutmixup_collator(samples, num_classes=4)
