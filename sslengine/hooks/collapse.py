"""Measure signs of collapse, the failure that a self-supervised loss does not show.

A network that gives every image the same features, or features of few dimensions, can have a
very low loss. At the end of each train phase these metrics are computed from its last batch:

    projection_std     spread of the unit-length outputs over images: 0 when all are alike
    projection_rank    RankMe of the outputs: how many dimensions they fill
    trunk_rank         RankMe of the trunk's final feature
    trunk_rows         of how many rows that is
    input_std          spread of the images that the trunk gets: 0 when all are copies of one
    patch_spread       how far the patches of an image are from their mean direction, from 0 to 1
    loss_scale         fp16: the factor on the loss; it falls with every overflow
    start_rank         RankMe of the trunk in the run's first step, if it starts from weights
    start_rows         of how many rows that is

The singular values of the trunk's features at the start, in the middle and at the end go into
RUN/spectra.jsonl.

They cover this process's part of one batch, so RankMe is at most its number of rows. The rules of
monitor/collapse.py look at them, and at what the method records. What they find is a warning, or,
with HOOKS.STOP_ON_COLLAPSE, the end of the run.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.atomic import append
from sslengine.distributed.collectives import any_rank
from sslengine.distributed.ranks import is_primary
from sslengine.errors import CollapseError, NonFiniteLossError
from sslengine.evaluate.label_free import spectrum
from sslengine.hooks.events import OPTIONAL, Hook, Task
from sslengine.models.trunks.base import find_trunk
from sslengine.monitor.collapse import END, MIDDLE, NOT_FINITE, READ, SPECTRA, START, find_signs

log = logging.getLogger("sslengine")


class LogCollapse(Hook):
    """Add the signs to `task.phase_results`: `HOOKS.COLLAPSE_SIGNS`.

    Cost: two singular value decompositions at the end of a phase. Outputs of its last step are
    kept until then, on their device.
    """

    def __init__(
        self, stops: bool = False, from_weights: bool = False, folder: Path | None = None
    ) -> None:
        """from_weights: the trunk starts from weights that were given. folder: of the run."""
        self.stops, self.from_weights, self.folder = stops, from_weights, folder
        self._starts = False  # is the run's first step watched?
        self._first: Tensor | None = None  # features of that step, until the phase ends
        self._ends: list[dict[str, float]] = []  # what the rules read, of each train phase
        self._told: set[str] = set()
        # Of the step that is watched: a handle on the trunk, what it gave, outputs, images.
        self._handle: Any = None
        self._trunk: list[Tensor] = []
        self._projection: Tensor | None = None
        self._input_std: Tensor | None = None

    def on_phase_start(self, task: Task) -> None:
        self._starts = task.train and task.progress.iteration == 0
        left = task.phase.steps - task.progress.step
        if task.train and (self._starts or left == 1):
            self._watch(task)
        self._set_due(task, 2 if self._starts else left)

    def on_step(self, task: Task) -> None:
        if not task.train:
            return
        left = task.phase.steps - task.progress.step
        if self._starts:
            self._starts, self._first = False, first_tensor(self._trunk)
            if self.from_weights and self._first is not None and len(self._first) > 1:
                task.storage.put_own("start_rank", spectrum.compute_rankme(self._first).item())
                task.storage.put_own("start_rows", float(len(self._first)))
            if left:
                self._forget()
        if left == 0:
            self._projection = first_tensor(task.last_batch.model_output)
        elif left == 1:
            self._watch(task)
        self._set_due(task, left)

    def _set_due(self, task: Task, left: int) -> None:
        """Ask for the step before the last, and the last."""
        self.due = task.state.steps + max(1, left - 1) if task.train else math.inf

    def on_phase_end(self, task: Task) -> None:
        if not task.train:
            return
        self._write_spectra(task)
        signs = self._measure()
        self._forget()
        scaler = getattr(task.precision, "scaler", None)
        if scaler is not None and scaler.is_enabled():
            signs["loss_scale"] = scaler.get_scale()
        task.phase_results.update(signs)
        read = {**task.storage.latest(), **signs}
        self._ends.append({name: read[name] for name in READ if name in read})
        self._judge(task)

    def on_exception(self, task: Task) -> None:
        self._forget()
        if isinstance(task.exception, NonFiniteLossError):
            parts = {f"loss.{name}": value for name, value in task.exception.parts.items()}
            end = {name: value for name, value in parts.items() if name in READ}
            end["loss_finite"] = 0.0
            for name, value in end.items():
                task.storage.put_own(name, value)
            for each in find_signs([*self._ends, end], task.config):
                task.exception.add(each.advice if each.what == NOT_FINITE else str(each))

    def state_dict(self) -> dict[str, Any]:
        return {OPTIONAL: True, "ends": self._ends}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ends = [dict(each) for each in state.get("ends", ())]

    def _judge(self, task: Task) -> None:
        found = list(find_signs(self._ends, task.config))
        for each in found:
            if each.what not in self._told:
                log.warning("%s", each)
        self._told = {each.what for each in found}
        if self.stops and any_rank(bool(found)):
            told = "\n  ".join(map(str, found)) or "another rank has found it; its log says what."
            raise CollapseError(
                f"this run has collapsed:\n  {told}\n  No checkpoint of this phase was written. "
                f"config.HOOKS.STOP_ON_COLLAPSE=false continues."
            )

    def _write_spectra(self, task: Task) -> None:
        """Append those of this phase; a run that resumes may write the same again."""
        last = max(phase.train_index for phase in task.phases)
        moment = {last // 2: MIDDLE, last: END}.get(task.phase.train_index)
        kept = {START: self._first, moment: first_tensor(self._trunk)}
        self._first = None
        for name, features in kept.items():
            if self.folder and is_primary() and name and features is not None and len(features) > 1:
                line = {"moment": name, "values": spectrum.relative_spectrum(features).tolist()}
                with suppress(OSError):  # the folder was removed, or there is no room
                    append(self.folder / SPECTRA, json.dumps(line).encode() + b"\n")

    def _watch(self, task: Task) -> None:
        """Keep what the trunk gives in the next step."""
        trunk = find_trunk(task.base_model)
        if trunk is not None:
            self._handle = trunk.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not self._trunk:  # the first crop size, if there are several
            self._trunk = [each.detach() for each in find_tensors(output)]
            images = first_tensor(inputs)
            if images is not None and len(images) > 1:
                self._input_std = spectrum.feature_std(images)

    def _forget(self) -> None:
        """Keep nothing of the step that was watched."""
        if self._handle is not None:
            self._handle.remove()
        self._handle, self._trunk, self._projection, self._input_std = None, [], None, None

    def _measure(self) -> dict[str, float]:
        signs: dict[str, float] = {}
        features, projection = first_tensor(self._trunk), self._projection
        if projection is not None and len(projection) > 1:
            signs["projection_std"] = spectrum.feature_std(projection).item()
            signs["projection_rank"] = spectrum.compute_rankme(projection).item()
        if features is not None and len(features) > 1:
            signs["trunk_rank"] = spectrum.compute_rankme(features).item()
            signs["trunk_rows"] = float(len(features))
        if self._input_std is not None:
            signs["input_std"] = self._input_std.item()
        patches = find_patches(self._trunk)
        if patches is not None:
            signs["patch_spread"] = measure_spread(patches).item()
        return signs


def find_tensors(output: Any) -> Iterator[Tensor]:
    """Yield all tensors with rows in an output."""
    if isinstance(output, Tensor):
        if output.ndim > 1:
            yield output
    elif isinstance(output, (Mapping, Sequence)) and not isinstance(output, str):
        for each in output.values() if isinstance(output, Mapping) else output:
            yield from find_tensors(each)


def first_tensor(output: Any) -> Tensor | None:
    """Return the first tensor in an output, flattened to rows; None if there is none."""
    first = next(find_tensors(output), None)
    return None if first is None else first.detach().flatten(1).float()


def find_patches(outputs: Sequence[Tensor]) -> Tensor | None:
    """Return the tokens N x L x D of a trunk's outputs; hidden patches, M x D, as 1 x M x D."""
    for each in outputs:
        if each.ndim == 3 and each.shape[1] > 1:
            return each
        if each.ndim == 2 and len(each) not in (1, len(outputs[0])):
            return each.unsqueeze(0)
    return None


def measure_spread(patches: Tensor) -> Tensor:
    """Return the root of 1 - |mean of the unit vectors|^2, as a mean over images: 0: all alike."""
    units = F.normalize(patches.float(), dim=-1)
    centred = units - units.mean(dim=1, keepdim=True)
    return centred.square().sum(dim=-1).mean(dim=1).sqrt().mean()
