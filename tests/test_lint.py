"""ruff and mypy (strict), as tests.

They run in the locked environment alone (constraints/, `make lock`): other versions of the
checkers, and of the libraries whose types they read, complain of other things.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "constraints" / f"py{sys.version_info.major}{sys.version_info.minor}.txt"


def _not_as_locked() -> list[str]:
    if not LOCK.exists():
        return [f"no {LOCK.name}"]
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    return [line for line in lines if _installed(line.split("==")[0]) != line.split("==")[1]]


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."]],
    ids=" ".join,
)
def test_nothing_to_complain_about(command: list[str]) -> None:
    if others := _not_as_locked():
        pytest.skip(f"not the locked environment: {', '.join(others[:3])} ...")
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


CALLS = """
import sslengine
from torch import nn

model = nn.Linear(1, 1)
sslengine.fit(model, [], epochs=1)
sslengine.fit(1, 2, nonsense=3)
sslengine.evaluate_loss(model, 3, [])
sslengine.predict(model, [], batch_size="many")
sslengine.fti
run = sslengine.train("photos", "simclr", epochs=2)
run.embed("photos", batch=3).paths
run.export("out", license=1)
sslengine.train("photos", epoch=1)
sslengine.load("runs/a", network="teacher").transform
sslengine.embed("runs/a", 7)
sslengine.export("runs/a")
"""
MISTAKES = {
    7: ("arg-type", "call-arg"), 8: ("arg-type",), 9: ("arg-type",), 10: ("attr-defined",),
    12: ("call-arg",), 13: ("arg-type",), 14: ("call-arg",), 16: ("arg-type",), 17: ("call-arg",),
}  # fmt: skip


@pytest.mark.first
def test_types_fit_and_those_of_users_calls_are_checked(tmp_path: Path) -> None:
    """One run of mypy: the package and its tools have no error, and each mistake of a caller's is one."""
    if others := _not_as_locked():
        pytest.skip(f"not the locked environment: {', '.join(others[:3])} ...")
    script = tmp_path / "calls.py"
    script.write_text(CALLS)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "sslengine", "tools", "extra_scripts", str(script)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    found: dict[int, set[str]] = {}
    for line in errors:
        match = re.search(r"calls\.py:(\d+): error: .*\[([a-z-]+)\]$", line)
        assert match, done.stdout
        found.setdefault(int(match[1]), set()).add(match[2])
    assert found == {line: set(codes) for line, codes in MISTAKES.items()}, done.stdout


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("sslengine.fit(", ["model loss data optimizer epochs hooks"]),
        ("sslengine.train(", ["data method model recipe out epochs batch_size device"]),
        ("sslengine.embed(", ["run data network batch_size"]),
        ("sslengine.export(", ["source out to license"]),
        ("sslengine.load(", ["run network"]),
        ("sslengine.train('photos').embed(", ["data batch_size"]),
    ],
)
def test_editors_see_the_arguments_of_the_functions_of_the_package(
    call: str, arguments: list[str]
) -> None:
    jedi = pytest.importorskip("jedi")
    found = jedi.Script(f"import sslengine\n{call}").get_signatures()
    names = [{each.name for each in signature.params} for signature in found]
    assert len(names) == len(arguments)
    for expected, seen in zip(arguments, names, strict=True):
        assert set(expected.split()) <= seen


def test_each_python_that_is_supported_has_its_lock() -> None:
    locks = {path.stem for path in (ROOT / "constraints").glob("py*.txt")}
    assert locks == {"py310", "py311", "py312", "py313"}
    for name in locks:
        assert {"torch==2.14.1", "torchvision==0.29.1"} <= set(
            (ROOT / "constraints" / f"{name}.txt").read_text().split()
        )
