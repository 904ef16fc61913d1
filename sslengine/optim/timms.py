"""timm's optimizers by timm's names: `OPTIMIZER.name: muon`, or `timm_adamw` where torch has one.

The registry looks here for names that it does not know. Names are timm's `list_optimizers()`; what
a name represents (`nmuon`: Nesterov's) is fixed, all other arguments are keys of OPTIMIZER and its
`args`. muon: matrices by momentum that is made orthogonal, vectors by AdamW.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

PREFIX = "timm_"


@functools.cache
def __getattr__(name: str) -> type[Any]:
    """Return the class of a name of timm's."""
    if not name[0].islower():  # timm ignores case; torch's SGD is not timm's sgd
        raise AttributeError(name)
    from timm import optim  # the import takes a second

    try:
        info = optim.get_optimizer_info(name.removeprefix(PREFIX))
        kind: Any = optim.get_optimizer_class(info.name, bind_defaults=False)
    except (ValueError, AssertionError, ImportError) as error:
        raise AttributeError(str(error)) from error
    fixed = dict(info.defaults or {})

    def make(self: Any, params: Any, **given: Any) -> None:
        kind.__init__(self, params, **fixed, **given)

    signature = inspect.signature(kind)
    free = [each for key, each in signature.parameters.items() if key not in fixed]
    own = {"__init__": make, "__signature__": signature.replace(parameters=free)}
    return type(kind.__name__, (kind,), {**own, "has_own_betas": True, "__module__": __name__})
