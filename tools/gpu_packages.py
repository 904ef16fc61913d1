#!/usr/bin/env python3
"""A virtual environment that has the packages of this Python, and what it lacks from wheels.

    python tools/gpu_packages.py wheels .venv-gpu

Needs no network. Packages that are there are left alone; this Python may itself be that of a
virtual environment, of which `venv --system-site-packages` would see nothing.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def is_missing(wheel: Path) -> bool:
    try:
        version(wheel.name.split("-")[0])
    except PackageNotFoundError:
        return True
    return False


def make(folder: Path) -> Path:
    """Its Python, that sees our packages."""
    venv.create(folder, clear=True)
    python = folder / "bin" / "python"
    where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = Path(subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip())
    ours = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (own / "ours.pth").write_text("\n".join(ours) + "\n")
    return python


def install(wheels: list[Path], python: Path) -> bool:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    command += ["--disable-pip-version-check", "--no-index", "--no-deps"]
    return subprocess.run([*command, *map(str, wheels)], check=False).returncode == 0


def main(wheels: str, folder: str) -> None:
    missing = [wheel for wheel in sorted(Path(wheels).glob("*.whl")) if is_missing(wheel)]
    python = make(Path(folder))
    if missing and not install(missing, python):
        # One of them is for another Python or machine: it alone is left out.
        for wheel in missing:
            if not install([wheel], python):
                print(f"Left out: {wheel}")


if __name__ == "__main__":
    main(*sys.argv[1:])
