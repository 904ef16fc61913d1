from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from sslengine.monitor.loss_ledger import LossLedger
from sslengine.python.history import History, KeepHistory


def test_steps_are_kept_as_the_ledger_reads_them() -> None:
    history = History()
    hook = KeepHistory(history)
    task: Any = SimpleNamespace(
        train=True, iteration=0, ledger=LossLedger(), phase=SimpleNamespace(epoch=3, complete=True),
        phase_results={"loss": 1.5}, optimizer=SimpleNamespace(learning_rates=lambda: {"lr": 0.5}),
    )  # fmt: skip
    hook.on_phase_start(task)
    for value in (1.0, 2.0):
        task.ledger.record({"loss": torch.tensor(value), "a": torch.tensor(7.0)}, task.iteration, 4)
        if value == 2.0:  # the first is a batch of a group that goes on
            hook.on_update(task)
        task.iteration += 1
    task.ledger.flush()
    hook.on_phase_end(task)
    first = {"iteration": 1, "epoch": 3, "loss": 1.0, "loss.a": 7.0}
    assert history.steps == [first, {**first, "iteration": 2, "loss": 2.0, "lr": 0.5}]
    assert history.epochs == [{"iteration": 2, "epoch": 3, "split": "train", "loss": 1.5}]
    task.train = False
    hook.on_phase_start(task)
    task.ledger.record({"loss": torch.tensor(9.0), "a": torch.tensor(9.0)}, 2, 4)
    task.ledger.flush()
    hook.on_phase_end(task)
    assert history.losses() == [1.0, 2.0]
    assert history.epochs[-1]["split"] == "test"


def test_what_was_made_before_an_error() -> None:
    history = History()
    hook = KeepHistory(history)
    task: Any = SimpleNamespace(train=True, ledger=LossLedger(), phase=SimpleNamespace(epoch=0))
    hook.on_phase_start(task)
    task.ledger.record(torch.tensor(1.0), 0, 4)
    task.ledger.flush()
    hook.on_exception(task)
    assert history.losses() == [1.0]
