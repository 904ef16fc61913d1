from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

numba = pytest.importorskip("numba", reason="compiles with numba")
compiling = pytest.importorskip("sslengine.data.augment.compiling")

ROOT = Path(__file__).resolve().parents[3]
MODULE = """
from sslengine.data.augment.compiling import compile_kernels, inlined, kernel, subroutine

@inlined
def twice(x):
    return 2 * x

@subroutine
def more(x):
    return twice(x) + 1

@kernel("int64(int64)")
def compute(x):
    return more(x)

assert compute(1) == 3  # as Python has it
compile_kernels()
assert compute.signatures
"""
SCRIPT = """
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s")
import small
print(small.compute(20), len(small.compute.signatures))
print("kept" if small.compute.stats.cache_hits else "made")
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "small.py").write_text(MODULE)
    return tmp_path


def run(package: Path, script: str = SCRIPT, **variables: str) -> tuple[list[str], str]:
    path = f"{package}{os.pathsep}{ROOT}"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def test_compiled_as_it_is_imported_and_kept_for_the_next_process(package: Path) -> None:
    words, told = run(package)
    assert words == ["41", "1", "made"]
    assert "compiled compute for images" in told
    words, told = run(package)
    assert words == ["41", "1", "kept"]
    assert "compiled compute" not in told


def test_where_nothing_can_be_kept_it_compiles_all_the_same(package: Path) -> None:
    """A file stands in the place of every folder: whoever runs the tests, none can be made."""
    blocked = package / "blocked"
    blocked.write_text("")
    (package / "__pycache__").write_text("")
    words, told = run(package, HOME=str(blocked), XDG_CACHE_HOME=str(blocked))
    assert words == ["41", "1", "made"]
    assert "cannot keep compiled code" in told


def test_errors_of_the_code_itself_are_not_taken_for_such(caplog: pytest.LogCaptureFixture) -> None:
    def wrong(x):  # type: ignore[no-untyped-def]
        return x.no_such_thing

    compiling.compile_kernels()  # from now on others as they are defined
    with caplog.at_level(logging.WARNING), pytest.raises(numba.TypingError):
        compiling.kernel("int64(int64)")(wrong)
    assert not caplog.records


BROKEN = """
import sys
from sslengine.config import facts
from sslengine.data.augment.backend import build_backend
from sslengine.errors import ConfigError
facts.find_spec = lambda name: object()
print(build_backend("auto").name)
from sslengine.data.augment.blur import blur  # imported, and not compiled
try:
    build_backend("numba")
except ConfigError as error:
    print(error)
"""


@pytest.mark.slow
def test_numba_that_cannot_be_imported_leaves_pillow(package: Path) -> None:
    (package / "numba.py").write_text("raise ImportError('Numba needs NumPy 2.3 or less')")
    (package / "simplejpeg.py").write_text("")
    words, told = run(package, script=BROKEN)
    assert words[0] == "pil"
    assert " ".join(words[1:]) == (
        "config.DATA.AUGMENT_BACKEND: numba is installed, but its import failed: Numba needs "
        "NumPy 2.3 or less. pil needs no package."
    )
    assert "The slower pil makes the same pixels." in told
