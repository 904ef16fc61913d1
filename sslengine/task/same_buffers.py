"""Have all ranks the same state of a method? Of what one rank's images gave, a checkpoint has rank
0's alone, and all ranks resume with it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from sslengine.distributed.collectives import max_in_place
from sslengine.distributed.data_parallel import batch_norm_buffers
from sslengine.distributed.sharding import is_sharded
from sslengine.errors import listing
from sslengine.precision import widest

log = logging.getLogger("sslengine")

# Of the sum of the sizes of a buffer's numbers: what rounding may change.
TOLERANCE = 1e-5


def warn_of_differing(method: nn.Module, copies: Iterable[nn.Module]) -> None:
    """Log the buffers that differ between ranks, but for statistics of batch norms. Collective.

    copies: of the model, in the method; their buffers are the model's, which rank 0 sends.
    """
    others = [*batch_norm_buffers(method), *(each for copy in copies for each in copy.buffers())]
    left_out = {id(each) for each in others}
    saved = method.state_dict()
    names = differing({
        name: each
        for name, each in method.named_buffers()
        if name in saved and id(each) not in left_out and not is_sharded(each)
    })  # fmt: skip
    if names:
        log.warning(
            "%s: the buffers %s differ between ranks. A checkpoint holds those of rank 0, with "
            "which all ranks resume. Compute them from the images of all ranks (gather, "
            "sum_over_ranks of sslengine.distributed.collectives), or save them in rank_state().",
            type(method).__name__,
            listing(names),
        )


def differing(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of those whose sums differ by more than rounding. Collective."""
    if not tensors:
        return []
    wide = [each.detach().to(widest(each.device)) for each in tensors.values()]
    sums = torch.stack([each.sum() for each in wide])
    sizes = torch.stack([each.abs().sum() for each in wide])
    largest, least, size = max_in_place(torch.stack([sums, -sums, sizes])).tolist()
    return [
        name
        for name, high, low, scale in zip(tensors, largest, least, size, strict=True)
        if high + low > TOLERANCE * scale
    ]
