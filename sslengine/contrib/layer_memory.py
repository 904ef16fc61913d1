"""Write a table of the memory that each layer of a model takes in one train step.

It is written to `<run>/profile/rank<N>_memory_by_layer.txt`. Enable it by
`config.PROFILING.MEMORY_PROFILING.TRACK_BY_LAYER_MEMORY`, or as a hook:

    HOOKS: {EXTRA: [{name: layer_memory, iteration: 3}]}     # ranks: [0]

    parameters    bytes of the layer's own parameters
    outputs       bytes of its outputs over all calls; an in-place output counts 0
    grown         (GPU) growth of torch's allocated memory during its forward: its outputs and
                  all that it keeps for backward

On a CPU torch counts no allocations, so there is no third column. Layers are the modules
without children. Operations between layers, such as additions, are in no line; on a GPU they
are in the total.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sslengine.distributed.ranks import rank
from sslengine.hooks.events import Hook, TaskView
from sslengine.hooks.profiling import profile_folder
from sslengine.registry import register_hook

MB = 2**20


@dataclass
class Line:
    name: str
    kind: str
    parameters: int
    calls: int = 0
    outputs: int = 0
    grown: int = 0


class LayerMemory:
    """Measures from its construction until `finish()`, which returns the table."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._device = device
        self.lines: list[Line] = []  # in the order in which layers are first called
        self.total = Line("all", type(model).__name__, 0)
        self._handles: list[Any] = []
        for name, module in model.named_modules():
            if not list(module.children()):
                own = _bytes(module.parameters(recurse=False))
                self._watch(module, Line(name, type(module).__name__, own))
        self._watch(model, self.total)

    def _watch(self, module: nn.Module, line: Line) -> None:
        began: list[int] = []

        def before(module: nn.Module, inputs: Any) -> None:
            began.append(self._allocated())

        def after(module: nn.Module, inputs: Any, output: Any) -> None:
            if not line.calls and line is not self.total:
                self.lines.append(line)
            line.calls += 1
            line.outputs += _new_bytes(inputs, output)
            line.grown += self._allocated() - began.pop()

        self._handles += [
            module.register_forward_pre_hook(before),
            module.register_forward_hook(after),
        ]

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated(self._device) if self._on_gpu else 0

    def finish(self) -> str:
        for handle in self._handles:
            handle.remove()
        summed = Line(
            "sum of layers", "", sum(line.parameters for line in self.lines),
            sum(line.calls for line in self.lines), sum(line.outputs for line in self.lines),
            sum(line.grown for line in self.lines),
        )  # fmt: skip
        width = max(len(line.name) for line in [*self.lines, summed])
        head = f"{'layer':<{width}}  {'kind':<20}{'calls':>6}{'parameters MB':>15}"
        head += f"{'outputs MB':>12}" + (f"{'grown MB':>10}" if self._on_gpu else "")
        rows = [self._row(line, width) for line in [*self.lines, summed]]
        if self._on_gpu:
            rows.append(f"\nthe whole forward: {self.total.grown / MB:.3f} MB grown")
        return "\n".join([head, *rows])

    def _row(self, line: Line, width: int) -> str:
        row = f"{line.name:<{width}}  {line.kind[:19]:<20}{line.calls:>6}"
        row += f"{line.parameters / MB:>15.3f}{line.outputs / MB:>12.3f}"
        return row + (f"{line.grown / MB:>10.3f}" if self._on_gpu else "")


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _new_bytes(inputs: Any, output: Any) -> int:
    """The bytes of the output's storage that is not the input's."""
    known = {tensor.untyped_storage().data_ptr() for tensor in _tensors(inputs)}
    storages = {each.untyped_storage().data_ptr(): each for each in _tensors(output)}
    return _bytes(tensor for where, tensor in storages.items() if where not in known)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in _tensors(each)]
    return []


@register_hook("layer_memory")
class WriteLayerMemory(Hook):
    """
    iteration: train steps before the one that is measured.
    ranks: which of them write the table.
    folder: where to; by default in the run's folder.
    """

    def __init__(self, iteration: int = 0, ranks: Sequence[int] = (0,), folder: str = "") -> None:
        self.iteration, self.folder = iteration, folder
        self._mine = rank() in ranks
        self._watch: LayerMemory | None = None

    def on_step_start(self, task: TaskView) -> None:
        if self._mine and task.train and task.iteration == self.iteration:
            self._watch = LayerMemory(task.base_model, task.device)

    def on_step(self, task: TaskView) -> None:
        if self._watch is not None:
            table, self._watch = self._watch.finish(), None
            folder = profile_folder(task.run_dir, self.folder)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"rank{rank()}_memory_by_layer.txt"
            path.write_text(f"{table.rstrip()}\n", encoding="utf-8")

    def on_exception(self, task: TaskView) -> None:
        if self._watch is not None:
            self._watch.finish()
