"""One rank of a measurement, started by scaling.py: the job as JSON, the result as JSON.

    messages    a training step: what this rank tells others, multiplications, memory
    steps       seconds of each of so many training steps
    collectives seconds of collectives of several sizes

A job of several processes without `group` is so many runs of one rank side by side: what their
steps cost where processes share the cores, and nobody waits for anybody.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import FlopCounterMode

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.config.resolve import resolve
from sslengine.distributed import process_group
from sslengine.services.order import Services
from sslengine.task.task import SelfSupervisionTask

CPU = torch.device("cpu")
# torch's operations, and which of their tensors is what a rank brings.
KINDS = {
    "allreduce_": ("all_reduce", -1),
    "allgather_": ("gather", -1),
    "_allgather_base_": ("gather", 1),
    "_reduce_scatter_base_": ("reduce_scatter", 0),
    "broadcast_": ("broadcast", 0),
    "alltoall_base_": ("all_to_all", 1),
}
# What torch's counter leaves out.
IN_PLACE = {torch.ops.aten.addmm_: lambda total, a, b, **_: 2 * a[0] * a[1] * b[1]}
WARM_UP = 2  # DDP lays its buckets out again after the first step


class Messages(TorchDispatchMode):
    """Every collective, DDP's own included: [kind, who asked for it, bytes that a rank brings]."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str, int]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function.namespace == "c10d":
            name = function.overloadpacket.__name__
            if name in KINDS:
                kind, place = KINDS[name]
                tensors = [each for each in tree_iter(args) if isinstance(each, Tensor)]
                self.seen.append((kind, _asked_by(), tensors[place].nbytes))
            elif name != "barrier":
                self.seen.append((name, _asked_by(), 0))
        return function(*args, **(kwargs or {}))


def _asked_by() -> str:
    """The module of sslengine that the message is for; DDP's own: its gradients or buffers."""
    frame: Any = sys._getframe(2)
    ours = False
    while frame is not None:
        path = frame.f_code.co_filename.replace(os.sep, "/")
        if path.endswith("/sslengine/precision.py"):  # it calls backward
            return "backward of gather and sums" if ours else "gradients"
        if "/torch/nn/parallel/" in path:
            return "buffers"
        if path.endswith("/sslengine/distributed/collectives.py"):
            ours = True
        elif "/sslengine/" in path and "/sslengine/distributed/" not in path:
            return Path(path).stem
        frame = frame.f_back
    return "torch"


class Saved:
    """Bytes that the forward pass keeps for the backward pass, each storage once."""

    def __init__(self, known: Iterator[Tensor]) -> None:
        self._seen = {each.untyped_storage().data_ptr() for each in known}
        self._kept: list[Tensor] = []  # or their places in memory would be used again
        self.bytes = 0

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
            self._kept.append(tensor)
        return tensor


@contextlib.contextmanager
def task_of(job: dict[str, Any]) -> Iterator[SelfSupervisionTask]:
    with tempfile.TemporaryDirectory(prefix="scaling_") as folder:
        config = resolve([*job["arguments"], f"config.CHECKPOINT.DIR='{folder}'"]).config
        task = SelfSupervisionTask(config, Path(folder), CPU, hooks=[], services=Services())
        task.prepare()
        task.start_phase()
        yield task
        task.close()


def messages(job: dict[str, Any]) -> dict[str, Any]:
    with task_of(job) as task:
        for _ in range(WARM_UP):
            task.step()
        saved = Saved(iter((*task.base_model.parameters(), *task.loss.buffers())))
        flops, seen = FlopCounterMode(display=False, custom_mapping=IN_PLACE), Messages()
        with saved_tensors_hooks(saved.pack, lambda tensor: tensor), flops, seen:
            task.step()
        return {
            "messages": seen.seen,
            "flops": flops.get_total_flops(),
            "activations": saved.bytes,
            **_held(task),
        }


def _held(task: SelfSupervisionTask) -> dict[str, int]:
    """Bytes of the model, of what is trained of it, of the optimizer, of the method's own."""
    trained = [each for each in task.base_model.parameters() if each.requires_grad]
    state = task.optimizer.state_dict()
    return {
        "parameters": _bytes(task.base_model.parameters()),
        "gradients": _bytes(trained),
        "optimizer": _bytes(tree_iter(state)),
        "teacher": _bytes(task.loss.parameters()),
        "memory": _bytes(task.loss.buffers()),
    }


def _bytes(things: Any) -> int:
    return sum(each.nbytes for each in things if isinstance(each, Tensor))


def steps(job: dict[str, Any]) -> list[float]:
    with task_of(job) as task:
        for _ in range(WARM_UP):
            task.step()
        _ready()
        return [_seconds(task.step) for _ in range(job["steps"])]


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _ready() -> None:
    """Begin when all have come so far."""
    print("ready", flush=True)
    sys.stdin.readline()


def collectives(job: dict[str, Any]) -> dict[str, list[tuple[int, float]]]:
    """[bytes that a rank brings, median seconds] of each kind."""
    _ready()
    found: dict[str, list[tuple[int, float]]] = {}
    for size in job["sizes"]:
        for kind, work in _works(size // 4).items():
            work()
            dist.barrier()
            repeats = max(3, min(job["repeats"], int(2e7 // size)))
            taken = statistics.median(_seconds(work) for _ in range(repeats))
            found.setdefault(kind, []).append((size, taken))
    return found


def _works(elements: int) -> dict[str, Callable[[], object]]:
    ranks = dist.get_world_size()
    own, everyones = torch.ones(elements), torch.ones(elements * ranks)
    single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return {
        "all_reduce": lambda: dist.all_reduce(own),
        "gather": lambda: single(everyones, own),
        "reduce_scatter": lambda: scatter(own, everyones),
        "broadcast": lambda: dist.broadcast(own, 0),
    }


def main() -> None:
    job = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    if job["group"]:
        process_group.join("gloo", CPU, timeout_minutes=10)
    result = {"messages": messages, "steps": steps, "collectives": collectives}[job["do"]](job)
    print("result", json.dumps(result), flush=True)
    process_group.leave()


if __name__ == "__main__":
    main()
