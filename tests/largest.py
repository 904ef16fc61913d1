"""The largest tensor that some code makes, so that a test can say what never comes to be; and how
many bytes of tensors there are at once, by torch's allocator.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Largest(TorchDispatchMode):
    """with Largest() as made: ...; made.elements"""

    elements = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        sizes = [each.numel() for each in tree_iter(result) if isinstance(each, Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


def peak_bytes(call: Callable[[], Any]) -> int:
    """At once, of those that the call makes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        kept = call()  # also of what it returns, which lives until here
        del kept
    events = profiled.profiler.kineto_results.events()
    taken = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(accumulate(size for _, size in taken))
