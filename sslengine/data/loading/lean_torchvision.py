"""torchvision's transforms without the rest of torchvision.

`import torchvision.transforms` runs torchvision's own file first, which imports its models and
operators, and by them torch's compiler: 1.3 seconds of CPU and 170 MB, of which transforms use
nothing. Here it is run when a name is requested that is not a module.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any


class _Deferred(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__version__", "__all__"):
            raise AttributeError(name)  # of those that Python asks any module for
        if importlib.util.find_spec(f"{self.__name__}.{name}"):
            module = importlib.import_module(f"{self.__name__}.{name}")
            if not _is_hidden(module, name):
                return module
        self.__class__ = types.ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, also an imported module of the package, if the name is left to it."""
        if not (isinstance(value, types.ModuleType) and _is_hidden(value, name)):
            super().__setattr__(name, value)


def _is_hidden(module: types.ModuleType, name: str) -> bool:
    """Its function of the same name is what the package gives: torchvision.models.alexnet."""
    return callable(getattr(module, name, None))


def defer(package: str) -> None:
    """Importing a module of the package no longer runs the package's own file."""
    spec = importlib.util.find_spec(package) if package not in sys.modules else None
    if spec is not None:
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _Deferred
        sys.modules[package] = module


defer("torchvision")
defer("torchvision.models")  # of a trunk's file, which does not need the operators either
