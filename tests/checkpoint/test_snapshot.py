from __future__ import annotations

import io

import pytest
import torch

from sslengine.checkpoint.snapshot import size_of, to_host


def test_training_cannot_change_a_snapshot() -> None:
    weight = torch.ones(3, requires_grad=True)
    state = {"a": [weight, (weight.detach() * 2, 5)], "b": {"name": "x"}}
    copy = to_host(state)
    with torch.no_grad():
        weight += 1
    assert torch.equal(copy["a"][0], torch.ones(3))
    assert not copy["a"][0].requires_grad
    assert copy["a"][1][1] == 5
    assert copy["b"] == {"name": "x"}


def test_shared_weights_stay_shared() -> None:
    layer = torch.nn.Linear(100, 100, bias=False)
    tied = torch.nn.Sequential(layer, layer).state_dict()
    assert tied["0.weight"] is not tied["1.weight"]
    file = io.BytesIO()
    torch.save(to_host(tied), file)
    assert len(file.getvalue()) < 2 * 100 * 100 * 4


def test_a_view_is_copied_alone_and_not_its_whole_storage() -> None:
    rows = torch.zeros(1000, 10)
    assert to_host({"x": rows[3]})["x"].untyped_storage().nbytes() == 40


def test_form_and_kind_stay() -> None:
    images = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    for tensor in (images, torch.tensor(True), torch.empty(0), torch.arange(3, dtype=torch.uint8)):
        copy = to_host([tensor])[0]
        assert torch.equal(copy, tensor)
        assert (copy.dtype, copy.stride()) == (tensor.dtype, tensor.stride())


def test_size_is_that_of_the_tensors() -> None:
    state = {"a": torch.zeros(10), "b": [torch.zeros(3, dtype=torch.uint8), ("x", 1)]}
    assert size_of(state) == 43


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_from_a_gpu() -> None:
    tensor = torch.rand(1000, device="cuda")
    copy = to_host({"x": tensor})["x"]
    assert copy.device.type == "cpu"
    assert torch.equal(copy, tensor.cpu())
