"""sslengine: self-supervised training in PyTorch, one YAML and one command.

From Python as from the command line: `sslengine.train`, `load`, `embed`, `export`; with objects in
place of YAML: `sslengine.fit`, `predict`, `evaluate_loss`. A custom method is written with
`Method`, `Batch`, `Step`, `EMA`, `gather` and others. They are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors and type checkers; importing sslengine loads none of it
    from sslengine.command.embed import embed as embed
    from sslengine.export import export as export
    from sslengine.methods.toolbox import *  # noqa: F403
    from sslengine.python.fit import fit as fit
    from sslengine.python.methods import trunk as trunk
    from sslengine.python.passes import evaluate_loss as evaluate_loss
    from sslengine.python.passes import predict as predict
    from sslengine.python.train import load as load
    from sslengine.python.train import train as train

__version__ = "0.1.0"

_LAZY = {
    "train": "sslengine.python.train",
    "load": "sslengine.python.train",
    "embed": "sslengine.command.embed",
    "export": "sslengine.export",
    "fit": "sslengine.python.fit",
    "trunk": "sslengine.python.methods",
    "predict": "sslengine.python.passes",
    "evaluate_loss": "sslengine.python.passes",
    **dict.fromkeys(
        ("Batch", "Center", "DINOHead", "EMA", "Method", "Queue", "Requirements", "Step",
         "ViewTrunk", "cross_view", "gather", "info_nce", "koleo", "linear", "match_views", "mlp",
         "pass_apart", "sinkhorn"),
        "sslengine.methods.toolbox",
    ),
}  # fmt: skip

if not TYPE_CHECKING:  # a type checker would take any name for one of the package
    __all__ = [*_LAZY]

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module 'sslengine' has no attribute {name!r}")
        return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
