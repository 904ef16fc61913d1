"""The user's code that a config names: kept features depend on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from sslengine.registry import is_installed

_ENGINE = __name__.partition(".")[0]


def hash_of_users_code(config: DictConfig) -> dict[str, str]:
    """Return {"code": hash} of its imported files, and of those that they use; {} without any."""
    named = {text.partition(":")[0] for text in _texts(OmegaConf.to_container(config))}
    files: set[Path] = set()
    for name in named & {*sys.modules}:
        _add(sys.modules[name], files)
    contents = sorted(sha256(file.read_bytes()).hexdigest() for file in files)
    return {"code": sha256("".join(contents).encode()).hexdigest()} if files else {}


def _texts(value: Any) -> Iterator[str]:
    """Yield each entry of PLUGINS, and each text such as `my_package.my_module:Name`."""
    if isinstance(value, dict):
        yield from value.get("PLUGINS") or ()
        value = [*value.values()]
    if isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str) and ":" in value:
        yield value


def _add(module: ModuleType, files: set[Path]) -> None:
    """Add the module's file, and those of the user's modules that its names are from."""
    file = Path(getattr(module, "__file__", None) or "")
    ours = module.__name__.partition(".")[0] in (_ENGINE, "__main__")
    if ours or file in files or not file.is_file() or is_installed(file):
        return
    files.add(file)
    for value in list(vars(module).values()):
        used = sys.modules.get(getattr(value, "__module__", None) or "")
        for each in (value, used):
            if isinstance(each, ModuleType):
                _add(each, files)
