"""Every step's loss, without waiting for any: the values stay on the device.

`record` keeps a reference and, with several ranks, starts a reduction that runs beside
the backward pass; with a period N, one for the values of N steps. The store reads them with
its other metrics, in one copy: at LOG_FREQUENCY, at the end of a phase and before a checkpoint;
`flush` reads them alone. Reading finds the first step whose loss is not finite, so no such step
is ever logged, averaged or saved as if nothing were wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sslengine.distributed.collectives import Pending, start_sum
from sslengine.distributed.ranks import world_size
from sslengine.errors import NonFiniteLossError
from sslengine.monitor.host import on_host

MAIN = "loss"
_MAIN_ALONE = (MAIN,)


class LossEntry(NamedTuple):
    iteration: int  # train steps made before this one
    parts: dict[str, float]  # means over all ranks' images; the loss itself is parts["loss"]
    batch_size: int  # images, over all ranks


class _Open(NamedTuple):
    iteration: int
    names: tuple[str, ...]
    values: Tensor
    batch_size: int
    samples: Tensor | None


class _Sum(NamedTuple):
    """A pending reduction: a row for each step, or the values of a single step."""

    steps: int
    values: Tensor
    pending: Pending


class Opened(NamedTuple):
    steps: list[_Open]
    values: list[Tensor]


class LossLedger:
    def __init__(
        self,
        check_finite: bool = True,
        period: int = 1,
        feed: Callable[[str, float], None] | None = None,
    ) -> None:
        """period: steps whose values are averaged over ranks by one collective.

        feed: gets each value that is read, by its name.
        """
        self.check_finite, self.period = check_finite, period
        self._feed = feed
        self._alone = world_size() == 1  # asked once: torch takes a microsecond for the answer
        self._open: list[_Open] = []
        self._sums: list[_Sum] = []  # of the first steps in _open
        self._summed = 0  # how many steps these are
        self._unread: list[LossEntry] = []
        # Losses times batch size of the phase so far; VISSL's `task.losses`.
        self.phase_losses: list[float] = []
        self.phase_samples = 0
        self._history: list[LossEntry] | None = None

    def start_phase(self) -> None:
        self.flush()
        self.phase_losses, self.phase_samples = [], 0

    def record(
        self,
        loss: Tensor | Mapping[str, Tensor],
        iteration: int,
        batch_size: int,
        share: float = 1.0,
        samples: Tensor | None = None,
    ) -> Tensor:
        """Note a step's loss (with its parts) and begin to average it over ranks.

        Returns this rank's loss, without graph.
        batch_size: images of the step over all ranks; share: of them, on this rank.
        samples: this rank's sample indices, on the host, for the error message.
        """
        if isinstance(loss, Tensor):
            own = values = loss.detach()
            names: tuple[str, ...] = _MAIN_ALONE
        else:
            own = loss[MAIN].detach()
            names = tuple(loss)
            values = torch.stack([part.detach().float() for part in loss.values()])
        if share != 1.0:
            values = values * share  # a copy: the reduction writes into it
        opened = _Open(iteration, names, values, batch_size, samples)
        if self._alone:
            self._open.append(opened)
        else:
            self._reduce_in_time(opened)
        return own

    def _reduce_in_time(self, opened: _Open) -> None:
        """Steps are summed together when there are `period` of them, with the same parts."""
        if self._summed < len(self._open) and self._open[-1].names != opened.names:
            self._start_sum()
        self._open.append(opened)
        if len(self._open) - self._summed >= self.period:
            self._start_sum()

    def _start_sum(self) -> None:
        values = [each.values for each in self._open[self._summed :]]
        together = values[0] if len(values) == 1 else torch.stack(values)
        self._sums.append(_Sum(len(values), together, start_sum(together)))
        self._summed = len(self._open)

    def flush(self) -> None:
        """Bring all open values to the host: one synchronisation for all of them.

        Collective where a period has begun and is not over.
        """
        if self._open:
            opened = self.take_open()
            self.note(opened, on_host(opened.values))

    def take_open(self) -> Opened:
        """What is still on the device, summed over ranks: whoever reads it must `note` it."""
        if not self._alone and self._summed < len(self._open):
            self._start_sum()
        steps, self._open = self._open, []
        sums, self._sums, self._summed = self._sums, [], 0
        return Opened(steps, [each.values for each in steps] if self._alone else _wait(sums))

    def note(self, opened: Opened, values: Sequence[list[float]]) -> None:
        """values: those of `opened`, on the host. Raises at the first that is not finite."""
        for (iteration, names, _, size, samples), read in zip(opened.steps, values, strict=True):
            entry = LossEntry(iteration, dict(zip(names, read, strict=True)), size)
            if self.check_finite and not all(map(math.isfinite, read)):
                raise NonFiniteLossError(_not_finite(entry, samples))
            self._unread.append(entry)
            self.phase_losses.append(entry.parts[MAIN] * size)
            self.phase_samples += size
            if self._history is not None:
                self._history.append(entry)
            if self._feed is not None:
                for name, value in entry.parts.items():
                    self._feed(name if name == MAIN else f"{MAIN}.{name}", value)

    def drain(self) -> list[LossEntry]:
        """The steps since the last drain."""
        self.flush()
        entries, self._unread = self._unread, []
        return entries

    def take_history(self) -> list[LossEntry]:
        """The steps since the last call, whether drained or not; the first call begins to keep."""
        entries, self._history = self._history or [], []
        return entries

    def phase_mean(self) -> float | None:
        """The mean loss per sample of this phase so far."""
        self.flush()
        return sum(self.phase_losses) / self.phase_samples if self.phase_samples else None

    def state_dict(self) -> dict[str, Any]:
        self.flush()
        return {
            "phase_losses": list(self.phase_losses),
            "phase_samples": self.phase_samples,
            "unread": [tuple(entry) for entry in self._unread],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._open, self._sums, self._summed = [], [], 0
        self._unread = [LossEntry(*entry) for entry in state.get("unread", ())]
        self.phase_losses = list(state["phase_losses"])
        self.phase_samples = int(state["phase_samples"])


def _wait(sums: list[_Sum]) -> list[Tensor]:
    """The sums over ranks, step by step."""
    values: list[Tensor] = []
    for each in sums:
        each.pending.wait()
        values.extend((each.values,) if each.steps == 1 else each.values.unbind())
    return values


def _not_finite(entry: LossEntry, samples: Tensor | None) -> str:
    parts = ", ".join(f"{name} {value}" for name, value in entry.parts.items())
    text = f"the loss of iteration {entry.iteration} is not finite: {parts}."
    if samples is not None:
        indices = torch.unique(samples).tolist()
        shown = ", ".join(map(str, indices[:64]))
        more = f", ... ({len(indices)} in all)" if len(indices) > 64 else ""
        text += f"\n  This rank's samples in that step: {shown}{more}."
    return (
        f"{text}\n  Usual causes: a learning rate that is too high, fp16 overflow, an input that "
        f"is not finite. No checkpoint was written since. The last steps again, with the place "
        f"named: python tools/replay.py RUN_FOLDER. config.HOOKS.CHECK_NAN=false continues."
    )
