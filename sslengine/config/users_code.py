"""The user's code that a config names: kept features and resumed runs depend on it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from sslengine.trust import is_installed

_ENGINE = __name__.partition(".")[0]


def hash_of_users_code(config: DictConfig) -> dict[str, str]:
    """Return {"code": hash} of its imported files, and of those that they use; {} without any."""
    contents = sorted(users_code(config).values())
    return {"code": sha256("".join(contents).encode()).hexdigest()} if contents else {}


def users_code(config: DictConfig) -> dict[str, str]:
    """Return the hash of each imported file, and of those that they use, by the module's name."""
    named = {text.partition(":")[0] for text in _texts(OmegaConf.to_container(config))}
    files: dict[str, Path] = {}
    for name in named & {*sys.modules}:
        _add(sys.modules[name], files)
    return {name: sha256(file.read_bytes()).hexdigest() for name, file in sorted(files.items())}


def code_of_object(part: Any) -> str:
    """Return the hash of the source of a user's function or class, the name of one installed."""
    while isinstance(part, partial):
        part = part.func
    part = part if hasattr(part, "__qualname__") else type(part)
    try:
        file, source = inspect.getfile(part), inspect.getsource(part)
    except (OSError, TypeError):  # of C, or typed at a prompt
        file, source = "", ""
    if not source or is_installed(Path(file)) or part.__module__.partition(".")[0] == _ENGINE:
        source = f"{part.__module__}.{part.__qualname__}"
    return sha256(source.encode()).hexdigest()


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


def _add(module: ModuleType, files: dict[str, Path]) -> None:
    """Add the module's file, and those of the user's modules that its names are from."""
    file = Path(getattr(module, "__file__", None) or "")
    ours = module.__name__.partition(".")[0] in (_ENGINE, "__main__")
    if ours or module.__name__ in files or not file.is_file() or is_installed(file):
        return
    files[module.__name__] = file
    for value in list(vars(module).values()):
        used = sys.modules.get(getattr(value, "__module__", None) or "")
        for each in (value, used):
            if isinstance(each, ModuleType):
                _add(each, files)


def users_frames(error: BaseException) -> TracebackType | None:
    """Return the part of the error's traceback that begins in the user's code, called by ours."""
    trace, called = error.__traceback__, False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if called and is_users(file):
            return trace
        trace, called = trace.tb_next, called or _is_ours(file)
    return None


def is_users(file: str) -> bool:
    """Tell whether the file of a frame is neither of this package nor of an installed one."""
    return not _is_ours(file) and not file.startswith("<") and not is_installed(Path(file))


def _is_ours(file: str) -> bool:
    return Path(file).is_relative_to(Path(__file__).parents[1])
