from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from sslengine.hooks.events import Hook
from sslengine.python.fit import fit
from sslengine.python.history import History, KeepHistory
from tests.python.toys import Points, batches, net, sgd, square


def _parts(output: Tensor, target: Tensor) -> dict[str, Tensor]:
    return {"loss": square(output, target), "size": output.square().mean()}


def test_each_batch_has_its_losses_and_each_update_its_rate() -> None:
    model, points = net(), Points()
    session = fit(
        model, _parts, batches(points), sgd(model), epochs=1, accumulate=2, validation=points,
        device="cpu",
    )  # fmt: skip
    known = [set(record) for record in session.history.steps]
    of_all = {"iteration", "epoch", "loss", "loss.size"}
    assert known == [of_all, of_all | {"lr"}, of_all | {"lr"}]  # of three, the last is alone
    assert session.history.steps[1]["lr"] == 0.1
    assert [record["split"] for record in session.history.epochs] == ["train", "test"]


def test_what_was_made_before_an_error() -> None:
    class Fail(Hook):
        def on_step(self, task: Any) -> None:
            if task.iteration == 2:
                raise KeyboardInterrupt

    model, history = net(), History()
    with pytest.raises(KeyboardInterrupt):
        fit(model, square, batches(Points()), sgd(model), epochs=1, device="cpu",
            hooks=[KeepHistory(history), Fail()], values={"LOG_FREQUENCY": 1})  # fmt: skip
    assert [record["iteration"] for record in history.steps] == [1]
