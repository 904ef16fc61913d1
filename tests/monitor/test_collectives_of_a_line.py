"""What ranks send one another for a log line, in a run with the hooks that put metrics in it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sslengine.distributed.ranks import rank
from sslengine.engine import loop
from sslengine.hooks.events import Hook
from sslengine.testing.runs import build, resolve_small
from tests.ranks import RankPool

EVERY, STEPS = 4, 12
Sent = tuple[str, str, int]  # operation, dtype, numbers


class _Sends(TorchDispatchMode, Hook):
    """Last of all hooks: what is sent after step n, by services, is in `after[n]`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.after: list[Counter[Sent]] = [Counter()]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.namespace == "c10d":
            sent = [each for each in tree_leaves(args) if isinstance(each, Tensor)][-1]
            name = func.overloadpacket.__name__
            self.after[-1][name, str(sent.dtype), sent.numel()] += 1
        return func(*args, **(kwargs or {}))

    def on_forward(self, task: Any) -> None:
        task.storage.put_scalar("mean", torch.tensor(1.0 + rank()), reduce="mean")
        task.storage.put_scalar("own", 1.0 + rank())

    def on_step(self, task: Any) -> None:
        self.after.append(Counter())


def _sent() -> Sequence[Counter[Sent]]:
    resolved = resolve_small([], {
        "LOG_FREQUENCY": EVERY, "DISTRIBUTED.NUM_PROC_PER_NODE": 2,
        "DATA.TRAIN.DATA_LIMIT": 8 * STEPS, "OPTIMIZER.num_iterations": STEPS,
        "HOOKS.COLLAPSE_SIGNS": True, "HOOKS.PERF_STATS.MONITOR_PERF_STATS": True,
        "HOOKS.PERF_STATS.PERF_STAT_FREQUENCY": EVERY,
    })  # fmt: skip
    sends = _Sends()
    with tempfile.TemporaryDirectory() as folder, sends:
        loop.run(build(resolved, Path(folder), [sends]))
    return sends.after


def test_a_line_costs_one_gather_of_numbers_and_no_object(two_ranks: RankPool) -> None:
    line = Counter({("_allgather_base_", "torch.float64", 1024): 1})
    for after in two_ranks.run(_sent):
        # The first steps: DDP arranges its buckets. After the last one the phase ends.
        step = after[EVERY + 1]
        assert step
        assert "torch.uint8" not in {dtype for _, dtype, _ in step}  # a pickled object
        for made in range(EVERY, STEPS):
            assert after[made] - step == (line if made % EVERY == 0 else Counter()), made
            assert not step - after[made], made
