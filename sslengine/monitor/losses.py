"""Keep every step's loss on the device until the store reads its metrics, as a mean over ranks.

The store reads at LOG_FREQUENCY, at the end of a phase and before a checkpoint. Reading finds the
first step whose loss is not finite, so no such step is ever logged, averaged or saved as if nothing
were wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sslengine.errors import NonFiniteLossError
from sslengine.monitor.over_ranks import Column, join

MAIN = "loss"
# Of the error of a loss that is not finite.
_CAUSES = (
    "Usual causes: a learning rate that is too high, fp16 overflow, an input that is not finite. "
    "No checkpoint was written since."
)
_REPLAY = "\n  Repeat the last steps, to find the module: "
_SWITCH = "config.HOOKS.CHECK_NAN=false continues."
_NAMED = 4  # images


class LossEntry(NamedTuple):
    iteration: int  # train steps made before this one
    parts: dict[str, float]  # means over all ranks' images; the loss itself is parts["loss"]
    batch_size: int  # images, over all ranks


class OpenLoss(NamedTuple):
    """A step's loss that is not read yet."""

    iteration: int
    names: tuple[str, ...]
    values: Tensor  # one for each name, of this rank
    batch_size: int
    share: float  # of the images, on this rank
    samples: Tensor | None


class LossLedger:
    def __init__(
        self,
        read: Callable[[], None],
        check_finite: bool = True,
        replay: str = "",
        name: Callable[[int], str] = str,
    ) -> None:
        """
        read: takes what is open and notes its values; collective.
        replay: the command that repeats the run's last steps; empty if none can.
        name: what to call the sample of an index.
        """
        self._replay, self._name = replay, name
        self.check_finite, self._read = check_finite, read
        self._open: list[OpenLoss] = []
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
        """Note a step's loss with its parts. Return this rank's loss, without graph.

        batch_size: images of the step over all ranks; share: of them, on this rank.
        samples: this rank's sample indices, on the host, for the error message.
        """
        parts = {MAIN: loss} if isinstance(loss, Tensor) else loss
        own = parts[MAIN].detach()
        values = own
        if not isinstance(loss, Tensor):
            values = torch.stack([part.detach().float() for part in loss.values()])
        self._open.append(OpenLoss(iteration, tuple(parts), values, batch_size, share, samples))
        return own

    def take_open(self) -> list[OpenLoss]:
        """Return losses that are still on the device. The caller must `note` their values."""
        opened, self._open = self._open, []
        return opened

    def column(self, steps: Sequence[OpenLoss]) -> dict[str, Column]:
        """Make what is read of these steps: each loss, times its rank's share of the images."""
        if not steps:
            return {}
        row = join([each.values for each in steps])
        shares = [each.share for each in steps for _ in each.names]
        alike = len(set(shares)) == 1
        row = row * (shares[0] if alike else torch.tensor(shares, dtype=row.dtype).to(row.device))
        return {MAIN: Column([row], "sum", [each.names for each in steps])}

    def note(
        self, steps: Sequence[OpenLoss], values: Sequence[float],
        keep: Callable[[dict[str, list[float]]], None],
    ) -> None:  # fmt: skip
        """Take the numbers of `column`, over all ranks. Raise at the first that is not finite.

        keep: gets the values by their names.
        """
        columns: dict[str, list[float]] = {}
        numbers = iter(values)
        try:
            for each in steps:
                read = list(islice(numbers, len(each.names)))
                parts = dict(zip(each.names, read, strict=True))
                entry = LossEntry(each.iteration, parts, each.batch_size)
                if self.check_finite and not all(map(math.isfinite, read)):
                    text = self._describe_bad(entry, each.samples)
                    raise NonFiniteLossError(text, parts, entry.iteration + 1)
                self._unread.append(entry)
                self.phase_losses.append(parts[MAIN] * each.batch_size)
                self.phase_samples += each.batch_size
                for name, value in parts.items():
                    columns.setdefault(name, []).append(value)
                if self._history is not None:
                    self._history.append(entry)
        finally:
            keep(columns)

    def flush(self) -> None:
        """Read all open values. Collective where there are some."""
        if self._open:
            self._read()

    def take_read(self) -> list[LossEntry]:
        """Return the steps that were read since the last call."""
        entries, self._unread = self._unread, []
        return entries

    def drain(self) -> list[LossEntry]:
        """Return the steps since the last call. Collective."""
        self.flush()
        return self.take_read()

    def take_history(self) -> list[LossEntry]:
        """Return the steps since the last call, drained or not; the first call begins to keep."""
        entries, self._history = self._history or [], []
        return entries

    def phase_mean(self) -> float | None:
        """Return the mean loss per sample of this phase so far. Collective."""
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
        self._open = []
        self._unread = [LossEntry(*entry) for entry in state.get("unread", ())]
        self.phase_losses = list(state["phase_losses"])
        self.phase_samples = int(state["phase_samples"])

    def _describe_bad(self, entry: LossEntry, samples: Tensor | None) -> str:
        parts = ", ".join(f"{name} {value}" for name, value in entry.parts.items())
        text = f"the loss of iteration {entry.iteration + 1} is not finite: {parts}."
        if samples is not None:
            text += f"\n  Its images, of this rank: {name_few(samples, self._name)}."
        replay = f"{_REPLAY}{self._replay}" if self._replay else ""
        return f"{text}\n  {_CAUSES} {_SWITCH}{replay}"


def name_few(samples: Tensor, name: Callable[[int], str]) -> str:
    """Name the first samples, and say how many others there are."""
    indices = torch.unique(samples).tolist()
    more = f" and {len(indices) - _NAMED} more" if len(indices) > _NAMED else ""
    return ", ".join(map(name, indices[:_NAMED])) + more
