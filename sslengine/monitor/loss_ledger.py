"""Every step's loss, without waiting for any: the values stay on the device.

`record` keeps a reference and, with several ranks, starts a reduction that runs beside
the backward pass. `flush` is the one place where the host waits: at LOG_FREQUENCY, at
the end of a phase and before a checkpoint. It also finds the first step whose loss is
not finite, so no such step is ever logged, averaged or saved as if nothing were wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sslengine.distributed.collectives import Pending, start_sum
from sslengine.distributed.ranks import world_size
from sslengine.errors import NonFiniteLossError

MAIN = "loss"


class LossEntry(NamedTuple):
    iteration: int  # train steps made before this one
    parts: dict[str, float]  # means over all ranks' images; the loss itself is parts["loss"]
    batch_size: int  # images, over all ranks


class _Open(NamedTuple):
    iteration: int
    values: Tensor
    pending: Pending | None
    batch_size: int
    samples: Tensor | None


class LossLedger:
    def __init__(self, check_finite: bool = True) -> None:
        self.check_finite = check_finite
        self._alone = world_size() == 1  # asked once: torch takes a microsecond for the answer
        self._names: tuple[str, ...] = (MAIN,)
        self._open: list[_Open] = []
        self._unread: list[LossEntry] = []
        # Losses times batch size of the phase so far; VISSL's `task.losses`.
        self.phase_losses: list[float] = []
        self.phase_samples = 0

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
        else:
            own = loss[MAIN].detach()
            self._names = tuple(loss)
            values = torch.stack([part.detach().float() for part in loss.values()])
        if share != 1.0:
            values = values * share  # a copy: the reduction writes into it
        pending = None if self._alone else start_sum(values)
        self._open.append(_Open(iteration, values, pending, batch_size, samples))
        return own

    def flush(self) -> None:
        """Bring all open values to the host: one synchronisation for all of them."""
        if not self._open:
            return
        opened, self._open = self._open, []
        for each, values in zip(opened, _on_host(opened), strict=True):
            parts = dict(zip(self._names, values, strict=True))
            entry = LossEntry(each.iteration, parts, each.batch_size)
            if self.check_finite and not all(map(math.isfinite, values)):
                raise NonFiniteLossError(_not_finite(entry, each.samples))
            self._unread.append(entry)
            self.phase_losses.append(parts[MAIN] * each.batch_size)
            self.phase_samples += each.batch_size

    def drain(self) -> list[LossEntry]:
        """The steps since the last drain."""
        self.flush()
        entries, self._unread = self._unread, []
        return entries

    def phase_mean(self) -> float | None:
        """The mean loss per sample of this phase so far."""
        self.flush()
        return sum(self.phase_losses) / self.phase_samples if self.phase_samples else None

    def state_dict(self) -> dict[str, Any]:
        self.flush()
        return {"phase_losses": list(self.phase_losses), "phase_samples": self.phase_samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._open, self._unread = [], []
        self.phase_losses = list(state["phase_losses"])
        self.phase_samples = int(state["phase_samples"])


def _on_host(opened: list[_Open]) -> list[list[float]]:
    """The values of each step. One copy from a GPU; on a CPU there is nothing to save."""
    for each in opened:
        if each.pending is not None:
            each.pending.wait()
    values = [each.values for each in opened]
    if values[0].device.type == "cpu":
        return [[value.item()] if value.ndim == 0 else value.tolist() for value in values]
    rows = torch.stack(values).tolist()
    return [row if isinstance(row, list) else [row] for row in rows]


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
        f"named: python tools/replay.py RUN_FOLDER. config.HOOKS.CHECK_NAN=false goes on."
    )
