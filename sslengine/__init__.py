"""sslengine: self-supervised training in PyTorch, one YAML and one command.

From Python, objects in place of YAML: `sslengine.fit`, `sslengine.predict`,
`sslengine.evaluate_loss`. They are loaded when they are first asked for.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "fit": "sslengine.python.fit",
    "predict": "sslengine.python.passes",
    "evaluate_loss": "sslengine.python.passes",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'sslengine' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
