"""Activation checkpointing of a network whose forward pass belongs to another library.

The network runs once on the meta device, to find rows of blocks: each block's input is exactly the
output of the block before. The rows are split into parts. When the first block of a part is called,
it computes the whole part under torch's checkpointing, which keeps the part's input; the other
blocks of the part return their input.

A part is computed a second time in the backward pass. The second pass must not update the running
statistics of batch norms, or they would be updated twice per step.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, dropwhile, pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from sslengine.errors import TrainingError
from sslengine.models.weight_file import first_line

LOG = logging.getLogger("sslengine")


@dataclass(eq=False)
class Part:
    """Consecutive blocks that are recomputed together; `done` is called after each forward pass."""

    blocks: list[nn.Module]
    done: Callable[[], None]
    running: bool = False
    _output: Any = None

    def run(self, *inputs: Any, **named: Any) -> Any:
        # DenseNet's blocks append to the list that they get.
        inputs = tuple(list(each) if isinstance(each, list) else each for each in inputs)
        self.running = True
        try:
            output = recomputed(self.blocks, self._run, *inputs, **named)
        finally:
            self.running = False
        self._output = output if len(self.blocks) > 1 else None
        self.done()
        return output

    def _run(self, *inputs: Any, **named: Any) -> Any:
        first, *others = self.blocks
        x = nn.Module.__call__(first, *inputs, **named)
        for block in others:
            x = nn.Module.__call__(block, x, *inputs[1:], **named)
        return x

    def pass_through(self, block: nn.Module, x: Any) -> Any:
        """Return the input of a block that is not the part's first: it is the part's output."""
        if x is not self._output and not torch.compiler.is_compiling():
            raise TrainingError(
                f"config.MODEL.ACTIVATION_CHECKPOINTING: the input of a {type(block).__name__} is "
                f"not the output of the block before, as it was when the network was built. Set "
                f"NUM_ACTIVATION_CHECKPOINTING_SPLITS to the number of blocks."
            )
        if block is self.blocks[-1]:
            self._output = None
        return x


@dataclass
class Rows:
    """The names of blocks that follow each other directly, row by row."""

    rows: list[list[str]] = field(default_factory=list)
    # Blocks that change their input in place. A part's input is kept, so they cannot be first.
    in_place: set[str] = field(default_factory=set)
    # For each module: the last block that had run when the module's forward pass ended.
    last: dict[str, str] = field(default_factory=dict)

    def split(self, parts: int, ends: Collection[str]) -> Iterator[list[str]]:
        """Yield at least `parts` parts, in order, of nearly equal lengths.

        ends: modules whose output is recorded: a part must end with them.
        """
        total, first = sum(map(len, self.rows)), 0
        bounds = {total * part // parts for part in range(parts)}
        lasts = {self.last.get(end) for end in ends}
        for row in self.rows:
            edges = [
                place
                for place, name in enumerate(row)
                if row[place - 1] in lasts
                or (first + place in bounds and name not in self.in_place)
            ]
            for start, end in pairwise([0, *edges, len(row)]):
                yield list(dropwhile(self.in_place.__contains__, row[start:end]))
            first += len(row)


def watch(network: nn.Module, blocks: str, run: Callable[[Any], Any]) -> Rows:
    """Find the rows of blocks, and of other modules that have submodules and no block.

    blocks: a regular expression for names of blocks.
    run: run a forward pass of its argument, the network in train mode, on the meta device.
    """
    tensors = chain(network.parameters(), network.buffers())
    twin = copy.deepcopy(network, {id(each): _on_meta(each) for each in tensors}).train()
    inside, watched = re.compile(blocks), _Watched()
    names = links(twin, blocks)
    for name, module in twin.named_modules():
        if name in names:
            module.register_forward_pre_hook(partial(watched.before, name), with_kwargs=True)
            module.register_forward_hook(watched.after)
        elif not name.startswith(tuple(f"{each}." for each in names)):
            module.register_forward_hook(partial(watched.after_outside, name))
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            run(twin)
        rows = watched.found()
    except Exception as error:  # not every network runs on the meta device
        LOG.info("Activation checkpointing: each block is one part (%s).", first_line(error))
        rows = [[name] for name in names if next(twin.get_submodule(name).children(), None)]
    rows = [row for row in rows if any(map(inside.fullmatch, row))]
    return Rows(rows, watched.in_place, watched.last)


def links(network: nn.Module, blocks: str) -> list[str]:
    """Return the outermost blocks, and outermost modules that have submodules and no block."""
    pattern, modules = re.compile(blocks), dict(network.named_modules())
    inside = [name for name in modules if pattern.fullmatch(name)]
    above = {name[:end] for name in inside for end, sign in enumerate(name) if sign == "."} | {""}
    found: list[str] = []
    for name, module in modules.items():
        taken = any(name.startswith(f"{each}.") for each in found)
        whole = name not in above and next(module.children(), None) is not None
        listed = isinstance(module, (nn.ModuleList, nn.ModuleDict))
        if not taken and (name in inside or (whole and not listed)):
            found.append(name)
    return found


class _Watched:
    """Hooks that compare each module's input with the output of the one before."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self.in_place: set[str] = set()
        self.last: dict[str, str] = {}
        self._given: tuple[Any, int, Any] = (None, 0, None)  # output, its version, other inputs
        self._got = (None, 0)

    def before(self, name: str, module: nn.Module, inputs: Any, named: Any) -> None:
        x, rest = (inputs[0] if inputs else None), (inputs[1:], named)
        last, version, others = self._given
        directly = isinstance(x, Tensor) and x is last and x._version == version
        if directly and _same(rest, others):
            self.rows[-1].append(name)
        else:
            self.rows.append([name])
        self._got, self._rest = (x, x._version if isinstance(x, Tensor) else 0), rest

    def after(self, module: nn.Module, inputs: Any, output: Any) -> None:
        x, version = self._got
        if isinstance(x, Tensor) and x._version != version:
            self.in_place.add(self.rows[-1][-1])
        self._given = (output, output._version if isinstance(output, Tensor) else 0, self._rest)
        self.last[self.rows[-1][-1]] = self.rows[-1][-1]

    def after_outside(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if self.rows:
            self.last[name] = self.rows[-1][-1]

    def found(self) -> list[list[str]]:
        names = list(chain.from_iterable(self.rows))
        if len(set(names)) < len(names):  # a module that is called twice cannot be inside a part
            return [[name] for name in dict.fromkeys(names)]
        return self.rows


def _on_meta(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor, device="meta")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return one is other or (not isinstance(one, Tensor) and bool(one == other))


def set_parts(
    network: nn.Module, parts: Iterable[Sequence[str]], done: Callable[[], None]
) -> list[Part]:
    """Set the parts that the network's blocks recompute from now on; return them."""
    made = [Part([network.get_submodule(each) for each in names], done) for names in parts if names]
    for block in network.modules():
        block.__dict__.pop("_part", None)
    for part in made:
        for block in part.blocks:
            if not hasattr(type(block), "_recomputes"):
                block.__class__ = _recomputing(cast(Any, type(block)))
            block.__dict__["_part"] = part
    return made


@cache
def _recomputing(kind: type[nn.Module]) -> type[nn.Module]:
    def call(self: Any, *inputs: Any, **named: Any) -> Any:
        part: Part | None = self.__dict__.get("_part")
        if part is None or not torch.is_grad_enabled():
            return nn.Module.__call__(self, *inputs, **named)
        if self is part.blocks[0]:
            return part.run(*inputs, **named)
        return part.pass_through(self, inputs[0])

    # Override __call__, not forward: a block that passes its input through must not run hooks.
    return type(kind.__name__, (kind,), {"__call__": call, "_recomputes": True})


def recomputed(
    owners: Iterable[nn.Module], inside: Callable[..., Any], *inputs: Any, **named: Any
) -> Any:
    """Call `inside` under activation checkpointing.

    In a compiled function batch norms update their statistics once without `context_fn`.
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), StatisticsUntouched(owners)

    own: dict[str, Any] = {} if torch.compiler.is_compiling() else {"context_fn": contexts}
    return checkpoint(inside, *inputs, use_reentrant=False, **own, **named)


class StatisticsUntouched(AbstractContextManager[None]):
    """Keep running statistics unchanged: momentum is 0, and batches are counted on a copy.

    Tracking stays on, because the second forward pass must save the same tensors as the first. It
    may be entered again: each backward pass of a kept graph computes a part again.
    """

    def __init__(self, owners: Iterable[nn.Module]) -> None:
        self._norms = [
            module
            for owner in owners
            for module in owner.modules()
            if isinstance(module, _BatchNorm) and module.num_batches_tracked is not None
        ]

    def __enter__(self) -> None:
        self._kept = [(each.momentum, each.num_batches_tracked) for each in self._norms]
        for module, (_, count) in zip(self._norms, self._kept, strict=True):
            assert count is not None
            module.momentum, module.num_batches_tracked = 0.0, count.clone()

    def __exit__(self, *_: object) -> None:
        for module, (momentum, count) in zip(self._norms, self._kept, strict=True):
            module.momentum, module.num_batches_tracked = momentum, count
