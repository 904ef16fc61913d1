"""What a method remembers outside of its buffers: no checkpoint has it.

A tensor or a number that is a plain attribute, and changes from step to step. A run that resumes
begins without it, and differs from one that was not stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from sslengine.errors import listing
from sslengine.methods.base import Method
from sslengine.models.model import Model
from sslengine.precision import widest

log = logging.getLogger("sslengine")

Seen = dict[str, Any]


def plain_values(method: nn.Module) -> Seen:
    """What the plain attributes are worth now, by their names; of a tensor its shape and sum."""
    return {} if _saves_itself(method) else dict(_plain_values(method, ""))


def warn_of_unsaved(method: nn.Module, first: Seen) -> None:
    """Log those that have changed since `first`: after the first step, and some steps later."""
    now = plain_values(method)
    changed = sorted(name for name, value in first.items() if now.get(name, value) != value)
    if changed:
        log.warning(
            "%s: %s change from step to step, and no checkpoint has them: a resumed run begins "
            "without. Make them buffers (self.register_buffer), or save them in rank_state(). "
            "Where no step needs those of the one before, a name that begins with _ says so.",
            type(method).__name__,
            listing(changed, 10),
        )


def _saves_itself(method: nn.Module) -> bool:
    """By a method for that, as far as can be seen."""
    own = ("rank_state", "get_extra_state", "state_dict")
    known = {getattr(kind, name, None) for kind in (nn.Module, Method) for name in own}
    return any(getattr(type(method), name, None) not in known for name in own)


def _plain_values(module: nn.Module, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        if isinstance(value, Tensor):
            wide = value.detach().to(widest(value.device))
            yield f"{prefix}{name}", (tuple(value.shape), float(wide.sum()))
        elif isinstance(value, (int, float)):
            yield f"{prefix}{name}", value
    for name, child in module.named_children():
        if not isinstance(child, Model):  # a copy of the model
            yield from _plain_values(child, f"{prefix}{name}.")
