"""sslengine: self-supervised training in PyTorch, one YAML and one command.

From Python as from the command line: `sslengine.train`, `load`, `embed`, `export`; with objects in
place of YAML: `sslengine.fit`, `predict`, `evaluate_loss`. A custom method is written with
`Method`, `Batch`, `Step`, `EMA`, `gather` and others. They are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors and type checkers; importing sslengine loads none of it
    from sslengine.command.api import load, train
    from sslengine.command.embed import embed
    from sslengine.export import export
    from sslengine.losses.koleo import koleo
    from sslengine.losses.masked_patches import Center
    from sslengine.losses.sinkhorn import sinkhorn
    from sslengine.methods.base import Method, Step
    from sslengine.methods.toolbox import (
        DINOHead,
        Queue,
        cross_view,
        gather,
        info_nce,
        linear,
        mlp,
    )
    from sslengine.methods.whole import EMA, Batch
    from sslengine.models.backbone import Backbone
    from sslengine.python.fit import fit
    from sslengine.python.passes import evaluate_loss, predict

__all__ = [
    "EMA", "Backbone", "Batch", "Center", "DINOHead", "Method", "Queue", "Step", "cross_view",
    "embed", "evaluate_loss", "export", "fit", "gather", "info_nce", "koleo", "linear", "load",
    "mlp", "predict", "sinkhorn", "train",
]  # fmt: skip

__version__ = "0.1.0"

_LAZY = {
    "train": "sslengine.command.api",
    "load": "sslengine.command.api",
    "embed": "sslengine.command.embed",
    "export": "sslengine.export",
    "fit": "sslengine.python.fit",
    "predict": "sslengine.python.passes",
    "Method": "sslengine.methods.base",
    "Step": "sslengine.methods.base",
    "Batch": "sslengine.methods.whole",
    "EMA": "sslengine.methods.whole",
    "Backbone": "sslengine.models.backbone",
    "Center": "sslengine.losses.masked_patches",
    "koleo": "sslengine.losses.koleo",
    "sinkhorn": "sslengine.losses.sinkhorn",
    **dict.fromkeys(
        ("DINOHead", "Queue", "cross_view", "gather", "info_nce", "linear", "mlp"),
        "sslengine.methods.toolbox",
    ),
    "evaluate_loss": "sslengine.python.passes",
}

if not TYPE_CHECKING:  # a type checker would take any name for one of the package

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module 'sslengine' has no attribute {name!r}")
        return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
