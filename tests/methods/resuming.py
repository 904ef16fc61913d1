"""A run that resumes from its state in the middle of an epoch, against one that never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sslengine.engine import loop
from sslengine.engine.task import SelfSupervisionTask
from sslengine.hooks.events import Hook
from tests.engine.runs import Watch, make_task


class KeepState(Hook):
    """The task's whole state after some train steps, as a checkpoint would hold it."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.state: dict[str, Any] = {}

    def on_step(self, task: Any) -> None:
        if task.train and task.iteration == self.after:
            self.state = task.get_classy_state(deep_copy=True)


def assert_goes_on_bit_by_bit(folder: Path, after: int = 3, **changes: Any) -> SelfSupervisionTask:
    """Trains the test recipe with `changes`, twice; returns the run that never stopped."""
    losses, keep = Watch(), KeepState(after)
    whole = make_task(folder / "whole", [losses, keep], **changes)
    loop.run(whole)
    again = Watch()
    resumed = make_task(folder / "resumed", [again, KeepState(after=-1)], **changes)
    resumed.set_classy_state(keep.state)
    loop.run(resumed)
    assert len(losses.losses) > after
    assert again.losses == losses.losses[after:]
    one, two = flat(whole.get_classy_state()), flat(resumed.get_classy_state())
    assert one.keys() == two.keys()
    for key, value in one.items():
        other = two[key]
        same = torch.equal(value, other) if torch.is_tensor(value) else value == other
        assert same, f"{key} differs"
    return whole


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """The leaves of nested dicts and lists, by path."""
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, (list, tuple)):
        inner = enumerate(value)
    else:
        return {path: value}
    return {k: v for key, each in inner for k, v in flat(each, f"{path}.{key}").items()}
