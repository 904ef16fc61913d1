from __future__ import annotations

import collections
import enum
import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.checkpoint import files
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.checkpoint.saver import Saver
from sslengine.checkpoint.snapshot import copy_to_host, expect_plain, size_of
from sslengine.engine.checkpointing import SaveCheckpoints
from sslengine.errors import CheckpointError
from sslengine.hooks.events import Hook
from tests.engine.runs import train


def test_training_cannot_change_a_snapshot() -> None:
    weight = torch.ones(3, requires_grad=True)
    state = {"a": [weight, (weight.detach() * 2, 5)], "b": {"name": "x"}}
    copy = copy_to_host(state)
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
    torch.save(copy_to_host(tied), file)
    assert len(file.getvalue()) < 2 * 100 * 100 * 4


def test_a_view_is_copied_alone_and_not_its_whole_storage() -> None:
    rows = torch.zeros(1000, 10)
    assert copy_to_host({"x": rows[3]})["x"].untyped_storage().nbytes() == 40


def test_form_and_kind_stay() -> None:
    images = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    for tensor in (images, torch.tensor(True), torch.empty(0), torch.arange(3, dtype=torch.uint8)):
        copy = copy_to_host([tensor])[0]
        assert torch.equal(copy, tensor)
        assert (copy.dtype, copy.stride()) == (tensor.dtype, tensor.stride())


def test_size_is_that_of_the_tensors() -> None:
    state = {"a": torch.zeros(10), "b": [torch.zeros(3, dtype=torch.uint8), ("x", 1)]}
    assert size_of(state) == 43


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_from_a_gpu() -> None:
    tensor = torch.rand(1000, device="cuda")
    copy = copy_to_host({"x": tensor})["x"]
    assert copy.device.type == "cpu"
    assert torch.equal(copy, tensor.cpu())


class _Colour(enum.Enum):
    RED = 1


PLAIN: dict[str, Any] = {
    "numbers": [1, 2.5, True, None, 1j],
    "texts": ("a", b"b"),
    "keys": {1: 2, (1, 2): 3},
    "set": {1, 2},
    "counted": collections.Counter("aab"),
    "by default": collections.defaultdict(int, a=1),
    "tensors": [torch.ones(2), torch.nn.Parameter(torch.ones(2))],
    "of torch": [torch.float32, torch.device("cpu"), torch.Size([2])],
    "numpy's generator": np.random.default_rng(0).bit_generator.state,
    "Python's generator": random.Random(0).getstate(),
}  # fmt: skip


def test_what_passes_can_be_read_again(tmp_path: Path) -> None:
    expect_plain(PLAIN)
    files.write(copy_to_host(PLAIN), tmp_path, "model_phase0.torch", {"results": {}})
    assert files.read(tmp_path / "model_phase0.torch")["set"] == {1, 2}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.float64(1.5), "numpy.float64"),  # a subclass of float
        (np.ones(3), "numpy.ndarray"),
        (collections.deque([1]), "collections.deque"),
        (_Colour.RED, f"{__name__}._Colour"),
        (Path("x"), "PosixPath"),
        (lambda: 1, "builtins.function"),
        (torch.nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
    ],
)
def test_what_could_not_be_read_is_named(value: Any, kind: str) -> None:
    with pytest.raises(CheckpointError, match=r"mine\.found\.1: .*") as caught:
        expect_plain({"other": 1, "mine": {"found": [0, value]}})
    assert kind in str(caught.value)


def test_a_key_is_a_value_too() -> None:
    with pytest.raises(CheckpointError, match=r"mine\._Colour\.RED"):
        expect_plain({"mine": {_Colour.RED: 1}})


class _Mean(Hook):
    """Its state is a number of numpy's after the first step."""

    def __init__(self, mean: Any) -> None:
        self.mean, self.steps = mean, 0

    def on_step(self, task: Any) -> None:
        self.steps += 1
        self.mean = np.mean([1.0, 2.0])

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"]


@pytest.mark.parametrize(("start", "steps"), [(np.float64(0), 0), (0.0, 4)])
def test_a_run_does_not_train_on_without_a_checkpoint_that_can_be_read(
    tmp_path: Path, start: Any, steps: int
) -> None:
    """All were written, and none could be read."""
    hook = _Mean(start)
    with pytest.raises(CheckpointError, match=r"hooks\._Mean\.mean: numpy\.float64"):
        train(tmp_path, [hook, SaveCheckpoints(tmp_path, CheckpointOptions())])
    assert files.list_checkpoints(tmp_path) == []
    assert hook.steps == steps


def test_whatever_a_write_raises_is_the_runs_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread ended with a traceback, and the run with status 0."""
    monkeypatch.setattr("sslengine.checkpoint.saver.WAITS", ())
    mine = Saver(tmp_path, CheckpointOptions())
    mine.save({"x": lambda: 1}, "model_phase0.torch", {"results": {}})
    with pytest.raises(CheckpointError, match="cannot write"):
        mine.finish()
