"""Parameters that a loss depends on, and that are in no module that the run knows.

A list of modules, a closure: they get gradients, and nothing trains, saves or reduces them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

log = logging.getLogger("sslengine")


def warn_of_unregistered(losses: Iterable[Tensor], known: Iterable[nn.Parameter]) -> None:
    """Log those from which the losses were computed, by their shapes: they have no names."""
    ids = {id(parameter) for parameter in known}
    unknown = [tuple(each.shape) for each in _parameters_of(losses) if id(each) not in ids]
    if unknown:
        shown = ", ".join(map(str, unknown[:6])) + (", ..." if len(unknown) > 6 else "")
        log.warning(
            "the loss depends on %d parameters that are in no module of the model or the method, "
            "so they are not trained and not saved; their shapes: %s. Make them attributes of the "
            "method (of lists: nn.ModuleList), or freeze them: requires_grad_(False).",
            len(unknown),
            shown,
        )


def _parameters_of(losses: Iterable[Tensor]) -> Iterator[nn.Parameter]:
    """The leaves of their graph."""
    seen: set[Any] = set()
    nodes: list[Any] = [loss.grad_fn for loss in losses]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter):
            yield leaf
        nodes.extend(following for following, _ in node.next_functions)
