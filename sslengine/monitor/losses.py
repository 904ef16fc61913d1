"""Keep every step's loss on the device until the store reads its metrics, as a mean over ranks.

The store reads at LOG_FREQUENCY, at the end of a phase and before a checkpoint. Reading finds the
first step whose loss is not finite, so no such step is ever logged, averaged or saved as if nothing
were wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sslengine.errors import NonFiniteLossError

MAIN = "loss"
_NAMED = 4  # images of a loss that is not finite


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
        self, read: Callable[[], None], check_finite: bool, replay: str, name: Callable[[int], str]
    ) -> None:
        """Make an empty ledger.

        read: takes what is open and notes its values; collective.
        replay: the command that repeats the run's last steps; empty if none can.
        name: names the sample of an index.
        """
        self._read, self.check_finite, self._replay, self._name = read, check_finite, replay, name
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

    def note(self, steps: Sequence[OpenLoss], numbers: Sequence[float]) -> Iterator[LossEntry]:
        """Yield the steps with their means over ranks. Raise at the first that is not finite."""
        rest = iter(numbers)
        for each in steps:
            parts = dict(zip(each.names, islice(rest, len(each.names)), strict=True))
            entry = LossEntry(each.iteration, parts, each.batch_size)
            if self.check_finite and not all(map(math.isfinite, parts.values())):
                raise self._not_finite(entry, each.samples)
            self._unread.append(entry)
            if self._history is not None:
                self._history.append(entry)
            self.phase_losses.append(parts[MAIN] * each.batch_size)
            self.phase_samples += each.batch_size
            yield entry

    def _not_finite(self, entry: LossEntry, samples: Tensor | None) -> NonFiniteLossError:
        parts = ", ".join(f"{name} {value}" for name, value in entry.parts.items())
        lines = [f"the loss of iteration {entry.iteration + 1} is not finite: {parts}."]
        if samples is not None:
            lines.append(f"Its images, of this rank: {name_few(samples, self._name)}.")
        lines.append(
            "Usual causes: a learning rate that is too high, fp16 overflow, an input that is not "
            "finite. No checkpoint was written since. config.HOOKS.CHECK_NAN=false continues."
        )
        if self._replay:
            lines.append(f"Repeat the last steps, to find the module: {self._replay}")
        return NonFiniteLossError("\n  ".join(lines), entry.parts, entry.iteration + 1)

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

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._open = []
        self._unread = [LossEntry(*entry) for entry in state.get("unread", ())]
        self.phase_losses = list(state["phase_losses"])
        self.phase_samples = int(state["phase_samples"])


def name_few(samples: Tensor, name: Callable[[int], str]) -> str:
    """Name the first samples, and say how many others there are."""
    indices = torch.unique(samples).tolist()
    more = f" and {len(indices) - _NAMED} more" if len(indices) > _NAMED else ""
    return ", ".join(map(name, indices[:_NAMED])) + more
