from __future__ import annotations

from typing import Any

import pytest
import torch

from sslengine.engine.step import multi_input_sample, single_input_sample
from sslengine.errors import DataError

IMAGES, PATCHES, LABELS = torch.ones(2, 3), torch.zeros(6, 3), torch.tensor([1, 2])
BATCH = {
    "images": [IMAGES],
    "patches": [PATCHES],
    "label": [LABELS],
    "data_valid": [torch.ones(2)],
    "mask": [torch.zeros(2)],
}


def test_one_input_is_itself_and_other_keys_come_along() -> None:
    sample = single_input_sample(
        {"data": [IMAGES], "label": [LABELS], "data_idx": [7]}, ["data"], ["label"]
    )
    assert sample["input"] is IMAGES
    assert sample["target"] is LABELS
    assert sample["data_idx"] == 7
    assert set(sample) == {"input", "target", "data_idx"}


@pytest.mark.parametrize("build", [single_input_sample, multi_input_sample])
def test_several_inputs_are_nested_by_name(build: Any) -> None:
    sample = build(BATCH, ["patches", "images"], ["label"])
    assert sample["input"] == {"patches": PATCHES, "images": IMAGES}
    assert sample["mask"] is BATCH["mask"][0]
    assert sample["data_valid"] is BATCH["data_valid"][0]


def test_the_multi_input_step_nests_a_single_one_too() -> None:
    assert multi_input_sample(BATCH, ["images"], ["label"])["input"] == {"images": IMAGES}


def test_several_targets_are_nested_by_name() -> None:
    sample = single_input_sample(BATCH, ["images"], ["label", "mask"])
    assert sample["target"] == {"label": LABELS, "mask": BATCH["mask"][0]}


@pytest.mark.parametrize(
    ("batch", "inputs", "targets", "message"),
    [
        ([IMAGES], ["data"], ["label"], "a batch that is a dict of lists, the collator made list"),
        (BATCH, ["image"], ["label"], "INPUT_KEY_NAMES: the batch has no key 'image'.*Did you mean 'images'"),
        (BATCH, ["images"], ["labels"], "TARGET_KEY_NAMES: the batch has no key 'labels'.*'label'"),
        ({"data": IMAGES, "label": [LABELS]}, ["data"], ["label"], r"batch\['data'\] must be a list.*Tensor"),
        ({"data": [IMAGES, IMAGES], "label": [LABELS]}, ["data"], ["label"], "comes from 2 data sources"),
        ({"data": [IMAGES], "label": [LABELS], "x": 3}, ["data"], ["label"], r"batch\['x'\] must be a list"),
    ],
)  # fmt: skip
def test_a_batch_that_breaks_the_contract(
    batch: Any, inputs: list[str], targets: list[str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        single_input_sample(batch, inputs, targets)
