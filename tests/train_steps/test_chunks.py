from __future__ import annotations

import pytest
import torch

from sslengine.errors import ConfigError
from sslengine.train_steps.gradcache import chunks_of, joined


def test_chunks_come_in_the_order_of_the_models_outputs() -> None:
    large, small = torch.arange(5), torch.arange(10, 13)
    assert [each.tolist() for each in chunks_of(large, 2)] == [[0, 1], [2, 3], [4]]
    assert [each.tolist() for each in chunks_of([large, small], 3)] == [
        [0, 1, 2], [3, 4], [10, 11, 12],
    ]  # fmt: skip


def test_named_inputs_have_no_chunks() -> None:
    with pytest.raises(ConfigError, match="the batch has images, patches"):
        list(chunks_of({"images": torch.zeros(1), "patches": torch.zeros(1)}, 2))


def test_outputs_are_joined_in_the_models_own_form_as_leaves() -> None:
    outputs = [
        [torch.full((2, 3), number), torch.full((2,), number, dtype=torch.int64)]
        for number in (1.0, 2.0)
    ]
    leaves, whole = joined(outputs)
    embeddings, numbers = whole
    assert embeddings[:, 0].tolist() == [1.0, 1.0, 2.0, 2.0]
    assert numbers.tolist() == [1, 1, 2, 2]
    assert leaves[0] is embeddings
    assert embeddings.is_leaf
    assert embeddings.requires_grad
    assert not numbers.requires_grad
