"""What a Pipeline makes is what torchvision's own classes make, called one by one on PIL images."""

from __future__ import annotations

import pickle
import random
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from sslengine.data.augment.image import make_rgb
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.transform import Counterpart, Sample
from sslengine.data.batch.collators import (
    image_keys,
    moco_collator,
    multicrop_collator,
    patch_and_image_collator,
    siamese_collator,
    simclr_collator,
)
from sslengine.data.batch.masks import ibot_multicrop_masking_collator
from sslengine.data.seeding import seed_sample
from sslengine.registry import TRANSFORMS
from tests.data.augment.lists import COLOUR, CROP, LISTS, TENSOR, TWO
from tests.data.augment.photos import photo
from tests.registries import as_before

CPU = torch.device("cpu")
WHERE = "config.DATA.TRAIN.TRANSFORMS"


def plain(entries: Any) -> Any:
    """The transforms as the list names them: torchvision's own, also within others."""
    steps = Pipeline(entries, WHERE).named

    def run_plainly(sample: Sample) -> Sample:
        with patch.object(Counterpart, "__call__", lambda self, image: self.named(image)):
            for step in steps:
                step(sample)
        return sample

    return run_plainly


class OfArrays:
    """The pipeline on arrays, as compiled kernels get images."""

    def __init__(self, pipeline: Pipeline) -> None:
        pytest.importorskip("sslengine.data.augment.compiled", reason="needs numba")
        self.pipeline = pipeline

    def __call__(self, sample: Sample) -> Sample:
        return self.pipeline({**sample, "data": [make_rgb(image) for image in sample["data"]]})


def on_pil(pipeline: Pipeline) -> Pipeline:
    return pipeline


BACKENDS = pytest.mark.parametrize("backend", [on_pil, OfArrays])


def fresh(number: int, sources: int = 1) -> Sample:
    return {
        "data": [photo(number + 1000 * source) for source in range(sources)],
        "data_valid": [1] * sources,
        "data_idx": [number] * sources,
        "label": [number % 3] * sources,
    }


def streams() -> list[Any]:
    return [random.random(), np.random.rand(), float(torch.rand(1))]  # noqa: NPY002


def run(transform: Any, number: int, sources: int = 1) -> tuple[Sample, list[Any]]:
    seed_sample(5, (0, number))
    return transform(fresh(number, sources)), streams()


def expect_same(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, Tensor):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
    elif isinstance(expected, Image.Image):
        assert (np.asarray(got) == np.asarray(expected)).all()
    elif isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for key in expected:
            expect_same(got[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(got) == len(expected)
        for one, other in zip(got, expected):
            expect_same(one, other)
    else:
        assert got == expected


CASES = [(name, 1) for name in LISTS] + [("simclr", 2), ("pirl", 2), ("a user's in the middle", 2)]


@BACKENDS
@pytest.mark.parametrize(("name", "sources"), CASES)
def test_the_pipeline_makes_what_the_list_makes(backend: Any, name: str, sources: int) -> None:
    """Sample by sample, and all three streams end where they end with the list."""
    listed = plain(LISTS[name])
    pipeline = backend(pickle.loads(pickle.dumps(Pipeline(LISTS[name], WHERE))))
    for number in range(8):
        got, ends = run(pipeline, number, sources)
        expected, expected_ends = run(listed, number, sources)
        assert ends == expected_ends
        expect_same(got, expected)


def samples(transform: Any, count: int = 12) -> list[Sample]:
    return [run(transform, number)[0] for number in range(count)]


def finished(pipeline: Pipeline, batch: Any) -> Any:
    finish = pipeline.finish_on(CPU)
    return batch if finish is None else finish.finish_batch(batch)


COLLATORS = {
    "moco": moco_collator,
    "pirl": patch_and_image_collator,
    "jigsaw": siamese_collator,
    "ibot": ibot_multicrop_masking_collator,
    "simclr": simclr_collator,
    "a user's in the middle": simclr_collator,
}
TENSORS = [name for name in LISTS if name not in ("images", "empty")]


@BACKENDS
@pytest.mark.parametrize("name", TENSORS)
def test_a_batch_that_has_arrived_is_the_lists_batch(backend: Any, name: str) -> None:
    collate: Any = COLLATORS.get(name, multicrop_collator)
    pipeline = Pipeline(LISTS[name], WHERE, image_keys(collate))
    made = samples(backend(pipeline))
    pipeline.settle(made)
    expected = collate(samples(plain(LISTS[name])))
    expect_same(finished(pipeline, collate(made)), expected)


@pytest.mark.parametrize("name", ["simclr", "floats of one's own", "jigsaw", "ibot"])
def test_a_sample_that_is_looked_at_by_itself_is_finished(name: str) -> None:
    pipeline = Pipeline(LISTS[name], WHERE, ("data",))
    made = [pipeline.finished(sample) for sample in samples(pipeline)]
    expect_same(made, samples(plain(LISTS[name])))


@BACKENDS
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("simclr", torch.uint8),
        ("pirl", torch.uint8),
        ("a user's in the middle", torch.uint8),
        ("raw values", torch.uint8),
        ("twice normalized", torch.uint8),
        ("normalized by indices", torch.float32),
        ("after normalize", torch.float32),
        ("rotation", torch.uint8),
        ("jigsaw", torch.uint8),
        ("ibot", torch.uint8),
    ],
)
def test_images_leave_the_worker_as_bytes_where_the_list_ends_in_to_tensor(
    backend: Any, name: str, dtype: torch.dtype
) -> None:
    made = samples(backend(Pipeline(LISTS[name], WHERE, ("data",))))
    assert {image.dtype for sample in made for image in sample["data"]} == {dtype}
    made = samples(backend(Pipeline(LISTS[name], WHERE)))
    assert {image.dtype for sample in made for image in sample["data"]} == {torch.float32}


def test_where_some_images_are_floats_of_ones_own_all_of_the_batch_are() -> None:
    pipeline = Pipeline(LISTS["floats of one's own"], WHERE, ("data",))
    made = samples(pipeline)
    types = [sample["data"][0].dtype for sample in made]
    assert set(types) == {torch.uint8, torch.float32}
    pipeline.settle(made)
    assert {sample["data"][0].dtype for sample in made} == {torch.float32}


def test_the_transform_of_the_docs() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "augmentation.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with as_before(TRANSFORMS):
        exec(code, {"__name__": __name__})
        entries = [TWO, CROP, {"name": "SomeMedian"}, COLOUR, *TENSOR]
        for number in range(4):
            expect_same(run(Pipeline(entries, WHERE), number), run(plain(entries), number))
