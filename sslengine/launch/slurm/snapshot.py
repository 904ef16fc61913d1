"""Copy the code for a job, so that later edits do not change a job that waits in the queue.

code/                   in the job's folder; its processes import from here
    sslengine/
    my_plugin.py        modules of config.PLUGINS, unless they are installed
"""

from __future__ import annotations

import importlib.util
import shutil
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from sslengine.monitor.code_version import NOTE, code_version

_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.torch", ".git", ".venv")


def copy_code(folder: Path, plugins: Iterable[str] = ()) -> Path:
    """Copy into `folder/code`, and return that."""
    code = folder / "code"
    package = Path(__file__).resolve().parents[2]
    shutil.copytree(package, code / package.name, ignore=_LEFT_OUT)
    (code / package.name / NOTE).write_text(f"{code_version(package) or 'unknown'}\n")
    for name in sorted({each.partition(".")[0] for each in plugins} - {package.name}):
        _copy_module(name, code)
    return code


def _copy_module(name: str, code: Path) -> None:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or _installed(Path(spec.origin)):
        return
    origin = Path(spec.origin).resolve()
    if origin.name == "__init__.py":
        shutil.copytree(origin.parent, code / name, ignore=_LEFT_OUT)
    else:
        shutil.copy(origin, code)


def _installed(file: Path) -> bool:
    places = {sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")}
    return any(file.resolve().is_relative_to(Path(place).resolve()) for place in places)
