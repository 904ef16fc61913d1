"""Every step's loss, without waiting for any: the values stay on the device.

The store reads them with its other metrics, as means over ranks, by one all-reduce and one copy:
at LOG_FREQUENCY, at the end of a phase and before a checkpoint. Reading finds the first step whose
loss is not finite, so no such step is ever logged, averaged or saved as if nothing were wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sslengine.errors import NonFiniteLossError

MAIN = "loss"
_MAIN_ALONE = (MAIN,)
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
        check_finite: bool = True,
        read: Callable[[], None] = lambda: None,
        feed: Callable[[dict[str, list[float]]], None] | None = None,
        replay: str = "",
        name: Callable[[int], str] = str,
    ) -> None:
        """read: takes what is open and notes its values; collective where something is open.

        feed: gets the values that are read, by their names.
        replay: the command that repeats the run's last steps; empty if none can.
        name: what to call the sample of an index.
        """
        self._replay, self._name = replay, name
        self.check_finite, self._read, self._feed = check_finite, read, feed
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
        """Note a step's loss with its parts. Returns this rank's loss, without graph.

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
        self._open.append(OpenLoss(iteration, names, values, batch_size, share, samples))
        return own

    @property
    def is_open(self) -> bool:
        """Are there losses that no read has taken?"""
        return bool(self._open)

    @property
    def has_entries(self) -> bool:
        """Are there steps that `take_read` gives once all is read?"""
        return bool(self._open or self._unread)

    def take_open(self) -> list[OpenLoss]:
        """Losses that are still on the device. The caller must `note` their values."""
        opened, self._open = self._open, []
        return opened

    def note(self, opened: Sequence[OpenLoss], values: Sequence[list[float]]) -> None:
        """values: those of `opened`, over all ranks. Raises at the first that is not finite."""
        columns: dict[str, list[float]] = {}
        try:
            for each, read in zip(opened, values, strict=True):
                parts = dict(zip(each.names, read, strict=True))
                entry = LossEntry(each.iteration, parts, each.batch_size)
                if self.check_finite and not all(map(math.isfinite, read)):
                    text = self._not_finite(entry, each.samples)
                    raise NonFiniteLossError(text, parts, entry.iteration + 1)
                self._unread.append(entry)
                self.phase_losses.append(parts[MAIN] * each.batch_size)
                self.phase_samples += each.batch_size
                for name, value in parts.items():
                    columns.setdefault(name, []).append(value)
                if self._history is not None:
                    self._history.append(entry)
        finally:
            if self._feed is not None:
                self._feed(columns)

    def flush(self) -> None:
        """Read all open values; with them the store reads its metrics."""
        self._read()

    def take_read(self) -> list[LossEntry]:
        """The steps that were read since the last call."""
        entries, self._unread = self._unread, []
        return entries

    def drain(self) -> list[LossEntry]:
        """The steps since the last call. Collective."""
        self.flush()
        return self.take_read()

    def take_history(self) -> list[LossEntry]:
        """The steps since the last call, whether drained or not; the first call begins to keep."""
        entries, self._history = self._history or [], []
        return entries

    def phase_mean(self) -> float | None:
        """The mean loss per sample of this phase so far. Collective."""
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

    def _not_finite(self, entry: LossEntry, samples: Tensor | None) -> str:
        parts = ", ".join(f"{name} {value}" for name, value in entry.parts.items())
        text = f"the loss of iteration {entry.iteration + 1} is not finite: {parts}."
        if samples is not None:
            text += f"\n  Its images, of this rank: {name_few(samples, self._name)}."
        replay = f"{_REPLAY}{self._replay}" if self._replay else ""
        return f"{text}\n  {_CAUSES} {_SWITCH}{replay}"


def name_few(samples: Tensor, name: Callable[[int], str]) -> str:
    """The names of the first samples, and how many others there are."""
    indices = torch.unique(samples).tolist()
    more = f" and {len(indices) - _NAMED} more" if len(indices) > _NAMED else ""
    return ", ".join(map(name, indices[:_NAMED])) + more
