"""Train steps on `cuda:0` tensors that have no values, on any machine.

torch's FakeTensorMode knows shape, type and device of every result and computes nothing. Seen so:
operations on two devices, what the host reads back, what a step makes on the host. Not seen:
kernels, streams, pinned memory, NCCL.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from sslengine.task import build
from sslengine.task.task import SelfSupervisionTask

CUDA = torch.device("cuda:0")
# The host waits to learn a value, or how large the result is.
_READS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim",
          "unique_consecutive", "bincount", "equal", "histc")  # fmt: skip
_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


class Unwanted(AssertionError):
    pass


class NothingOfTheHost(TorchDispatchMode):
    """Raises where a step waits for the device, mixes devices, or computes on the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        if name in _READS:
            raise Unwanted(f"{func}: the host reads from the device")
        given = [each for each in tree_leaves((args, kwargs or {})) if isinstance(each, Tensor)]
        _check(func, given)
        try:
            result = func(*args, **(kwargs or {}))
        except _NEEDS_VALUES as error:
            raise Unwanted(f"{func}: the host reads from the device") from error
        made = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
        _check(func, made)
        if len({each.device for each in (*given, *made)}) > 1:
            raise Unwanted(f"{func}: a copy between devices")
        return result


def _check(func: Any, tensors: list[Tensor]) -> None:
    if len({each.device for each in tensors}) > 1:
        raise Unwanted(f"{func}: inputs or results on two devices")
    for each in tensors:
        if each.device.type == "cpu" and each.numel() > 1:
            raise Unwanted(f"{func}: a tensor of shape {tuple(each.shape)} on the host")


class Mode(FakeTensorMode):
    def __deepcopy__(self, memo: Any) -> Mode:
        return self  # a copy of a fake tensor belongs to the same mode


def two_steps(task: SelfSupervisionTask) -> None:
    """The first two steps of a task that is made on the CPU, on fake tensors of a GPU."""
    if torch.__version__ < "2.8":
        pytest.skip("without a driver this torch ends the process at a fake CUDA tensor")
    task.prepare()
    task.on_start()
    task.start_phase()
    task.on_phase_start()
    batches = [task.next_batch() for _ in range(2)]
    with Mode(allow_non_fake_inputs=False) as mode, _backward_in_python():
        memo: dict[int, Tensor] = {}
        for part in (task.base_model, task.loss):
            _move(part, mode, memo)
        task.state.reading.batches = iter(
            tree_map(lambda v: _fake(v, mode) if isinstance(v, Tensor) else v, batches)
        )
        task.device = CUDA
        task.parts = replace(
            task.parts,
            optimizer=build.build_run_optimizer(task.config, task.learner, CUDA, 1.0),
            precision=build.build_run_precision(task.config, CUDA),
        )
        with NothingOfTheHost():
            for _ in batches:
                task.step()
    assert task.iteration == 2
    task.close()


def _fake(value: Tensor, mode: FakeTensorMode) -> Tensor:
    return mode.from_tensor(value).detach().to(CUDA)


def _move(module: nn.Module, mode: FakeTensorMode, memo: dict[int, Tensor]) -> None:
    """In place; what several modules share stays shared."""
    for each in module.modules():
        for tensors in (each._parameters, each._buffers):
            for name, value in tensors.items():
                if value is None or isinstance(value, FakeTensor):
                    continue
                if id(value) not in memo:
                    made = _fake(value, mode)
                    if isinstance(value, nn.Parameter):
                        made = nn.Parameter(made, requires_grad=value.requires_grad)
                    memo[id(value)] = made
                tensors[name] = memo[id(value)]  # type: ignore[index]


@contextmanager
def _backward_in_python() -> Iterator[None]:
    """torch's own engine asks for the device."""
    plain = Tensor.backward
    Tensor.backward = _backward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Tensor.backward = plain  # type: ignore[method-assign]


@torch.no_grad()
def _backward(loss: Tensor, *_: Any, **__: Any) -> None:
    root = loss.grad_fn
    waiting = _uses(root)
    grads: dict[Any, list[Tensor | None]] = {root: [torch.ones_like(loss)]}
    ready = deque([root])
    while ready:
        node = ready.popleft()
        given = _complete(node, grads.pop(node))
        if hasattr(node, "variable"):
            variable = node.variable
            variable.grad = given[0] if variable.grad is None else variable.grad + given[0]
            continue
        found = node.apply(*given) if isinstance(node, torch.autograd.function.BackwardCFunction) \
            else node(*given)  # fmt: skip
        found = found if isinstance(found, tuple) else (found,)
        for (after, index), grad in itertools.zip_longest(
            node.next_functions, found[: len(node.next_functions)], fillvalue=None
        ):
            if after is None:
                continue
            slots = grads.setdefault(after, [None] * max(1, len(after._input_metadata)))
            if grad is not None:
                grad = grad.sum_to_size(after._input_metadata[index].shape)
                slots[index] = grad if slots[index] is None else slots[index] + grad
            waiting[after] -= 1
            if waiting[after] == 0:
                ready.append(after)


def _uses(root: Any) -> dict[Any, int]:
    """How many gradients each node of the graph waits for. Nodes stay alive as its keys."""
    uses = {root: 0}
    todo = [root]
    while todo:
        for after, _ in todo.pop().next_functions:
            if after is not None:
                if after not in uses:
                    uses[after] = 0
                    todo.append(after)
                uses[after] += 1
    return uses


def _complete(node: Any, given: list[Tensor | None]) -> list[Tensor | None]:
    """A function written in Python gets zeros where there is no gradient."""
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return given
    return [
        torch.zeros(its.shape, dtype=its.dtype, device=its.device) if grad is None else grad
        for grad, its in zip(given, node._input_metadata, strict=True)
    ]
