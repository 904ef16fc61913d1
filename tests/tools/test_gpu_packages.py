"""What `make gpu` installs, on a CPU."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
NEEDED = (
    "sslengine", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "numba", "simplejpeg",
)  # fmt: skip
THERE = ("torch", "torchvision", "sslengine")


def required(names: tuple[str, ...]) -> set[str]:
    """These packages, and what they require without extras."""
    left, found = [canonicalize_name(name) for name in names], set()
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        requirements = (Requirement(each) for each in distribution(name).requires or ())
        left += [
            canonicalize_name(each.name)
            for each in requirements
            if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    return found


def listed() -> set[str]:
    """The names in the Makefile."""
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    names = [
        name
        for line in re.findall(r"^(?:PURE|COMPILED) = (.*)$", text, re.MULTILINE)
        for name in line.split()
    ]
    return {canonicalize_name(name.split("==")[0]) for name in names}


def test_every_package_that_torch_does_not_bring_is_listed() -> None:
    try:
        needed = required(NEEDED) - required(THERE[:2]) - set(THERE)
    except PackageNotFoundError as missing:
        pytest.skip(f"not installed: {missing}")
    assert needed <= listed()


def wheel(folder: Path, name: str, text: str) -> None:
    """A package of one module."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", text)
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")


@pytest.mark.slow
def test_the_environment_has_ours_and_what_was_missing(tmp_path: Path) -> None:
    """Also where this Python is that of a virtual environment; what is there stays."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "not_there_before", "is_new = True")
    wheel(wheels, "torch", "is_new = True")
    broken = wheels / "of_another_python-1.0-cp27-cp27m-win32.whl"
    broken.write_bytes((wheels / "torch-1.0-py3-none-any.whl").read_bytes())
    tool = [sys.executable, str(ROOT / "tools" / "gpu_packages.py"), str(wheels)]
    done = subprocess.run(
        [*tool, str(tmp_path / "made")], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout == f"Left out: {broken}\n"
    code = "import classy_vision.tasks, not_there_before, torch; print(not_there_before.is_new, torch.nn)"
    python = tmp_path / "made" / "bin" / "python"
    seen = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=300)
    assert seen.stdout.startswith("True <module 'torch.nn'"), seen.stderr


@pytest.mark.slow
def test_make_gpu_finds_the_engine_in_its_environment(tmp_path: Path) -> None:
    """As far as a machine without a GPU goes: the report's program starts, and says so."""
    command = ["make", "gpu", f"PYTHON={sys.executable}", f"WHEELS={tmp_path}"]
    done = subprocess.run(
        [*command, f"GPU_VENV={tmp_path / 'made'}",
         f"GPU_REPORT=--out {tmp_path} --device cuda:99"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert "torch sees no CUDA device here" in done.stderr, done.stderr
