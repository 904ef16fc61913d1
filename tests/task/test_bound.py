"""What applies to the steps of a phase is decided at its start."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from sslengine.precision import Precision, TorchAmp
from tests.train_steps.tasks import ListModel, begin, make_batch

AMP = {"USE_AMP": True, "AMP_TYPE": "pytorch", "AMP_DTYPE": "bfloat16"}


@pytest.mark.parametrize("mixed", [False, True])
def test_only_mixed_precision_is_asked_for_contexts_and_conversions(
    mixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for kind in (Precision, TorchAmp):
        for name in ("autocast", "as_full"):
            own = getattr(kind, name)

            def note(*given: Any, own: Any = own, name: str = name) -> Any:
                asked.append(name)
                return own(*given)

            monkeypatch.setattr(kind, name, note)
    batches = [make_batch(seed) for seed in range(2)]
    changes = {"MODEL__AMP_PARAMS": AMP} if mixed else {}
    task = begin(batches, ListModel(), nn.CrossEntropyLoss(), **changes)
    for _ in batches:
        task.step()
    assert asked == (["autocast", "as_full"] * 2 if mixed else [])


def test_an_event_without_hooks_is_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    task = begin([make_batch(0)], ListModel(), nn.CrossEntropyLoss())
    announced: list[str] = []
    monkeypatch.setattr(type(task), "run_hooks", lambda self, event: announced.append(event))
    task.step()
    assert announced == ["on_backward", "on_step"]  # that of the gradients' norm


def test_a_separate_pass_has_its_own() -> None:
    task = begin([make_batch(0)], ListModel(), nn.CrossEntropyLoss())
    other = task.beside(task.state.reading)
    assert other.state.bound is not task.state.bound
    assert other.state.bound.model is task.model
