"""Sizes of the project, its words, and the way of a step: each number has a bound, which only falls.

A row is a bound and a goal. A count above its bound fails. So does a bound that lies further above
the count than SLACK, and above the goal: lower it with the code.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

from sslengine.command.front import main

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sslengine"
SLACK = 1.02

# Lines of folders of sslengine/: bound, goal.
FOLDERS = {
    "task train_steps trainer services engine": (2980, 2400),
    "methods losses": (5297, 4500),
    "hooks": (1303, 1200),
    "optim": (1678, 1700),
    "monitor metrics meters": (2819, 1800),
    "checkpoint": (1200, 1200),
    "distributed launch": (2797, 2700),
    "testing python": (2944, 2000),
    "data": (11728, 8200),
    "models": (6432, 4800),
    "config": (4253, 3300),
    "engines evaluate predictor": (8338, 6200),
    "export": (1685, 1500),
    "command": (5032, 3800),
    "report": (2500, 2500),
    "contrib": (4500, 4500),
}
COUNTS = {
    "lines": (63239, 50000),
    "files": (369, 350),
    "lines at the top": (2298, 1200),
    "lines of tests": (74631, 55000),
    "files of tests": (460, 400),
    "lines of tools": (4953, 3500),
    "files under 60 lines": (45, 45),
    "longest file": (600, 600),
    "files that one other imports": (110, 110),
    "modules imported by a string": (5, 5),
    "pairs of folders of data that import each other": (0, 0),
    "imports in data against its order": (0, 0),
    "functions named by a preposition": (40, 40),
    "docstrings of functions that are fragments": (40, 40),
    "class names with two meanings": (0, 0),
    "raise statements": (908, 800),
    "median lines of a function": (9, 9),
    "longest function": (70, 70),
    "lines of README": (150, 150),
    "lines of CHANGELOG": (150, 150),
}
# Functions and files that a step of SimCLR passes, outside of data/.
WAY = {"functions": (40, 40), "files": (14, 14)}

# Inside data/ a folder imports from those before it alone.
DATA = ("options", "decode", "manifest", "sources", "augment", "batch", "loading")
PREPOSITION = re.compile(
    r"_*(of|on|in|by|for|with|without|as|at|to|from|beside|among|after|before|within|between|per)_"
)
EVENTS = ("on_", "before_", "after_")
FRAGMENT = re.compile(
    r"(Of|On|In|By|For|With|Without|As|At|To|From|Beside|Those|That|And|What|Which|Where|How)\b"
)


@cache
def _trees(folder: Path = PACKAGE) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def _nodes(*kinds: type) -> Iterator[Any]:
    for tree in _trees().values():
        yield from (node for node in ast.walk(tree) if isinstance(node, kinds))


def _expect(name: str, count: float, row: tuple[float, float]) -> None:
    bound, goal = row
    assert count <= max(bound, goal), f"{name}: {count:g}, and the bound is {bound:g}"
    assert bound <= max(goal, count * SLACK), f"{name}: the bound {bound:g} can be {count:g}"


@pytest.mark.parametrize("folders", FOLDERS)
def test_lines_of_folders(folders: str) -> None:
    lines = sum(_lines(path) for path in _trees() if _folder(path) in folders.split())
    _expect(folders, lines, FOLDERS[folders])


def test_each_folder_has_a_bound() -> None:
    named = {name for names in FOLDERS for name in names.split()}
    assert {_folder(path) for path in _trees()} - {""} <= named


def _folder(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else ""


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    _expect(name, _counts()[name], COUNTS[name])


@cache
def _counts() -> dict[str, float]:
    core = [path for path in _trees() if _folder(path) != "contrib"]
    tests, tools = ([*(ROOT / name).rglob("*.py")] for name in ("tests", "tools"))
    sizes = [_lines(path) for path in core if path.name != "__init__.py"]
    functions = list(_nodes(ast.FunctionDef, ast.AsyncFunctionDef))
    lengths = [each.end_lineno - each.lineno + 1 for each in functions]
    docstrings = [ast.get_docstring(each) or "" for each in functions]
    names = [each.name for each in functions if not each.name.startswith(EVENTS)]
    meanings: dict[str, list[ast.ClassDef]] = defaultdict(list)
    for each in _nodes(ast.ClassDef):
        if not each.name.startswith("_"):
            meanings[each.name].append(each)
    arrows = set(_arrows())
    return {
        "lines": sum(map(_lines, core)),
        "files": len(core),
        "lines at the top": sum(_lines(path) for path in core if path.parent == PACKAGE),
        "lines of tests": sum(map(_lines, tests)),
        "files of tests": len(tests),
        "lines of tools": sum(map(_lines, tools)),
        "files under 60 lines": sum(size < 60 for size in sizes),
        "longest file": max(sizes),
        "files that one other imports": sum(_importers(path) == 1 for path in core),
        "modules imported by a string": sum(map(_is_own_import_by_string, _nodes(ast.Call))),
        "pairs of folders of data that import each other": sum(
            (other, own) in arrows and own < other for own, other in arrows
        ),
        "imports in data against its order": sum(
            DATA.index(other) > DATA.index(own) for own, other in arrows if {own, other} <= {*DATA}
        ),
        "functions named by a preposition": sum(
            PREPOSITION.match(f"{each}_") is not None for each in names
        ),
        "docstrings of functions that are fragments": sum(
            FRAGMENT.match(each) is not None for each in docstrings
        ),
        "class names with two meanings": sum(len(each) > 1 for each in meanings.values()),
        "raise statements": len(list(_nodes(ast.Raise))),
        "median lines of a function": median(lengths),
        "longest function": max(lengths),
        "lines of README": _lines(ROOT / "README.md"),
        "lines of CHANGELOG": _lines(ROOT / "CHANGELOG.md"),
    }


def _importers(path: Path) -> int:
    """Count the files that import this module, or a name from it."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return 0 if path.name.startswith("__") else len(_imported().get(module, ()))


@cache
def _imported() -> dict[str, set[Path]]:
    found: dict[str, set[Path]] = defaultdict(set)
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
            else:
                continue
            for name in names:
                found[name].add(path)
    return found


def _is_own_import_by_string(call: ast.Call) -> bool:
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    given = call.args[0] if call.args else None
    is_text = isinstance(given, ast.Constant) and str(given.value).startswith("sslengine")
    return name == "import_dotted" and is_text


def _arrows() -> Iterator[tuple[str, str]]:
    """Yield (importing, imported) folders and files of data/."""
    for path, tree in _trees(PACKAGE / "data").items():
        own = path.relative_to(PACKAGE / "data").parts[0].removesuffix(".py")
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                "sslengine.data."
            ):
                other = str(node.module).split(".")[2]
                if other != own:
                    yield own, other


def test_the_way_of_a_step(tmp_path: Path) -> None:
    """Between the ends of two updates, of which the first is not that of a run or a log line."""
    passed: set[tuple[str, int]] = set()
    updates = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        file = Path(code.co_filename)
        if event == "call" and file.is_relative_to(PACKAGE) and _folder(file) != "data":
            passed.add((code.co_filename, code.co_firstlineno))

    def count(*_: Any) -> None:
        nonlocal updates
        updates += 1
        if updates in (4, 5):
            sys.setprofile(note if updates == 4 else None)

    handle = register_optimizer_step_post_hook(count)
    keys = {"DATA.NUM_DATALOADER_WORKERS": 0, "DATA.TRAIN.DATA_LIMIT": 96,
            "DATA.TRAIN.BATCHSIZE_PER_REPLICA": 16, "OPTIMIZER.num_epochs": 1,
            "MACHINE.PRECISION": "fp32", "CHECKPOINT.DIR": tmp_path / "run"}  # fmt: skip
    try:
        said = [f"config.{key}={value}" for key, value in keys.items()]
        assert main(["config=quickstart/simclr", *said]) == 0
    finally:
        sys.setprofile(None)
        handle.remove()
    assert updates == 6
    _expect("functions of a step", len(passed), WAY["functions"])
    _expect("files of a step", len({file for file, _ in passed}), WAY["files"])
