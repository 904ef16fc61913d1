from __future__ import annotations

import pytest

from sslengine.engine.loop import run


class _Script:
    """A task of two phases of two steps that writes down what is asked of it."""

    def __init__(self, fail_at: str = "") -> None:
        self.calls: list[str] = []
        self.fail_at = fail_at
        self.phases_left, self.left = 2, 0

    def _note(self, what: str) -> None:
        self.calls.append(what)
        if what == self.fail_at:
            raise StopIteration(what)  # the one that loops like to swallow

    def on_start(self) -> None:
        self._note("start")

    def done_training(self) -> bool:
        return self.phases_left == 0

    def start_phase(self) -> None:
        self.phases_left -= 1
        self.left = 2

    def on_phase_start(self) -> None:
        self._note("phase")

    def steps_left(self) -> bool:
        return self.left > 0

    def step(self) -> None:
        self.left -= 1
        self._note("step")

    def on_phase_end(self) -> None:
        self._note("/phase")

    def on_end(self) -> None:
        self._note("/start")

    def on_exception(self, error: BaseException) -> None:
        self.calls.append(f"exception {error}")


def test_phases_and_steps_in_order() -> None:
    task = _Script()
    run(task)
    assert task.calls == ["start", *["phase", "step", "step", "/phase"] * 2, "/start"]


@pytest.mark.parametrize("where", ["start", "phase", "step", "/phase", "/start"])
def test_an_error_anywhere_is_told_and_raised_a_stop_iteration_too(where: str) -> None:
    task = _Script(fail_at=where)
    with pytest.raises(StopIteration, match=where):
        run(task)
    assert task.calls[-2:] == [where, f"exception {where}"]


def test_a_finished_task_only_starts_and_ends() -> None:
    task = _Script()
    task.phases_left = 0
    run(task)
    assert task.calls == ["start", "/start"]
