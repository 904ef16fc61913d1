"""Train steps on `cuda:0` tensors that have no values, on any machine.

torch's FakeTensorMode knows shape, type and device of every result and computes nothing. Seen so:
operations on two devices, what the host reads back, what a step makes on the host. Not seen:
kernels, streams, pinned memory, NCCL.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

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
from torch.utils._pytree import tree_leaves, tree_map_with_path

from sslengine.data import feed
from sslengine.engine.task import SelfSupervisionTask
from sslengine.precision import Precision
from tests.launches import why_slow

CUDA = torch.device("cuda:0")
HOST_KEYS = {*feed.HOST_KEYS}
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
# The host waits to learn a value, or how large the result is.
_READS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim",
          "unique_consecutive", "bincount", "equal", "histc")  # fmt: skip
_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


class Unwanted(AssertionError):
    pass


class NothingOfTheHost(TorchDispatchMode):
    """Raises where a step waits for the device, mixes devices, or computes on the host; and where
    CUDA would run a foreach operation tensor by tensor.
    """

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True  # torch compiles nothing below any other mode

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense" and args[0].device.type == "cpu":
            return _one(args[0].dtype)  # what is on the host may be read there
        if name in _READS:
            raise Unwanted(f"{func}: the host reads from the device")
        why = why_slow(func, args)
        if why:
            raise Unwanted(f"{func}: a launch for each tensor, for {why}")
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
        if each.device.type == "cpu" and each.numel() > 1 and not hasattr(each, "of_the_host"):
            raise Unwanted(f"{func}: a tensor of shape {tuple(each.shape)} on the host")


class CopiesIntoPinned(TorchDispatchMode):
    """Counts copies from the device into memory of the host; all but these must not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.started = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        given = [each.device.type for each in args if isinstance(each, Tensor)]
        if len(set(given)) > 1:
            if func.overloadpacket.__name__ != "copy_" or given != ["cpu", "cuda"] or not args[2]:
                raise Unwanted(f"{func}: a copy that waits")
            self.started += 1
        return func(*args, **(kwargs or {}))


def place_of(tensor: Tensor) -> int:
    """In place of an address, which a tensor without values does not have."""
    return tensor.untyped_storage()._cdata + tensor.storage_offset()


def is_there(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "cuda"


class Answers(TorchDispatchMode):
    """For what may wait, at the end of a phase or outside of training: one is what is read, and a
    mask lets all through. Two devices in one operation are still an error, torch's own.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense":
            return _one(args[0].dtype)
        if name == "index" and args[1][0] is not None and args[1][0].dtype == torch.bool:
            return args[0].clone()
        return func(*args, **(kwargs or {}))


def _one(dtype: torch.dtype) -> float | int | bool:
    return True if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1


class Mode(FakeTensorMode):
    def __deepcopy__(self, memo: Any) -> Mode:
        return self  # a copy of a fake tensor belongs to the same mode

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.overloadpacket.__name__ == "_fused_sgd_":
            return None  # in place; torch says nothing of it for fake tensors
        return super().__torch_dispatch__(func, types, args, kwargs)


def two_steps(task: SelfSupervisionTask, half: str = "") -> None:
    """The first two steps of a task that is made on the CPU, on fake tensors of a GPU."""
    with on_cuda(task, half=half), NothingOfTheHost():
        for _ in range(2):
            task.step()
    assert task.iteration == 2
    assert task.num_updates == 2 // task.state.reading.accumulate  # type: ignore[union-attr]


@contextmanager
def on_cuda(
    task: SelfSupervisionTask, half: str = "", batches: int = 2
) -> Iterator[FakeTensorMode]:
    """A task that is made on the CPU, on fake tensors of a GPU, with some batches before it.

    half: fp16 with a gradient scaler, or bf16; "" for float32.
    """
    if torch.__version__ < "2.8":
        pytest.skip("without a driver this torch ends the process at a fake CUDA tensor")
    if not hasattr(task, "parts"):
        task.prepare()
    task.on_start()
    task.start_phase()
    task.on_phase_start()
    read = [task.state.next_batch() for _ in range(batches)]
    with Mode(allow_non_fake_inputs=False) as mode, _backward_in_python(), _as_with_a_gpu():
        memo: dict[int, Tensor] = {}
        for part in (task.base_model, task.loss):
            move(part, mode, memo)
        read_these(task, read, mode)
        task.device = task.made_by.device = CUDA
        parts, made_by = task.parts, task.made_by
        task.parts = replace(
            parts,
            optimizer=made_by.choose_optimizer(
                parts.train_step_function,
                parts.learner,
                task.base_model,
                task.loss,
                parts.plan.epochs,
            ),
            precision=Precision(CUDA, HALVES[half]) if half else parts.precision,
        )
        yield mode
    task.close()


def read_these(task: SelfSupervisionTask, batches: list[Any], mode: FakeTensorMode) -> None:
    assert task.state.reading is not None
    task.state.reading.batches = iter(moved(batches, mode))


def moved(values: Any, mode: FakeTensorMode) -> Any:
    """As the feed moves a batch: the numbers of samples stay on the host."""
    return tree_map_with_path(
        lambda path, value: value if not isinstance(value, Tensor)
        else _kept(value, mode) if HOST_KEYS & {getattr(each, "key", None) for each in path}
        else _fake(value, mode), values
    )  # fmt: skip


def _kept(value: Tensor, mode: FakeTensorMode) -> Tensor:
    made = mode.from_tensor(value)
    made.of_the_host = True  # type: ignore[attr-defined]
    return made


@contextmanager
def _as_with_a_gpu() -> Iterator[None]:
    """torch asks for a device before it casts to half precision, and for its random numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
        patch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
        patch.setattr(torch.cuda, "get_rng_state", lambda *_: None)
        patch.setattr(torch.cuda, "set_rng_state", lambda *_: None)
        patch.setattr(torch.cuda, "current_stream", Mock())
        yield


def _fake(value: Tensor, mode: FakeTensorMode) -> Tensor:
    return mode.from_tensor(value).detach().to(CUDA)


def move(module: nn.Module, mode: FakeTensorMode, memo: dict[int, Tensor]) -> None:
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "backward", lambda loss, **more: _backward([loss], **more))
        patch.setattr(torch.autograd, "backward", _backward)
        # Activation checkpointing computes a part again once for each number.
        patch.setattr(torch._C, "_current_graph_task_id", lambda: 1)
        yield


@torch.no_grad()
def _backward(
    tensors: Sequence[Tensor],
    grad_tensors: Sequence[Tensor] | None = None,
    inputs: Sequence[Tensor] | None = None,
    **_: Any,
) -> None:
    grads: dict[Any, list[Tensor | None]] = {}
    for root, grad in zip(tensors, grad_tensors or map(torch.ones_like, tensors), strict=True):
        slots = grads.setdefault(root.grad_fn, [None] * len(root.grad_fn._input_metadata))
        slots[root.output_nr] = grad
    waiting = _uses(list(grads))
    ready = deque(node for node in grads if not waiting[node])
    while ready:
        node = ready.popleft()
        given = _complete(node, grads.pop(node))
        if hasattr(node, "variable"):
            if inputs is None or any(node.variable is each for each in inputs):
                _accumulate(node.variable, given[0])
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
                meant = after._input_metadata[index]  # the engine sums and casts to it, too
                grad = grad.sum_to_size(meant.shape).to(meant.dtype)
                slots[index] = grad if slots[index] is None else slots[index] + grad
            waiting[after] -= 1
            if waiting[after] == 0:
                ready.append(after)


def _accumulate(variable: Tensor, grad: Any) -> None:
    """As torch does: a gradient lies in memory as its parameter does."""
    if variable.grad is not None:
        variable.grad = variable.grad + grad
    elif grad.stride() == variable.stride():
        variable.grad = grad
    else:
        variable.grad = torch.empty_like(variable).copy_(grad)


def _uses(roots: list[Any]) -> dict[Any, int]:
    """How many gradients each node of the graph waits for. Nodes stay alive as its keys."""
    uses = dict.fromkeys(roots, 0)
    todo = list(roots)
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
