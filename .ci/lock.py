#!/usr/bin/env python3
"""Write constraints/py3*.txt: each package that the tests use, at its newest version.

    make lock                                        # for each of Python 3.10 to 3.13 found here
    python .ci/lock.py python3.12 /opt/py313/bin/python

pip resolves setup.py's `test` extra around constraints/torch.txt; nothing is installed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "constraints"
PYTHONS = [f"python3.{minor}" for minor in range(10, 14)]
HEAD = "# Written by `make lock`: what `make test` and `make quickstart` install on Python {}.\n"


def main(pythons: list[str]) -> None:
    for python in pythons or [each for each in PYTHONS if _runs(each)]:
        version = _output(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
        path = FOLDER / f"py{version.replace('.', '')}.txt"
        path.write_text(HEAD.format(version) + "\n".join(_resolved(python)) + "\n")
        print(f"{path.relative_to(ROOT)}: written")


def _runs(python: str) -> bool:
    return shutil.which(python) is not None and (
        subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0
    )


def _resolved(python: str) -> list[str]:
    """name==version of all that pip would install, in the order of names."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--upgrade", "pip"], check=True)
        report = _output(
            *pip, "install", "--dry-run", "--ignore-installed", "--report", "-",
            "--constraint", str(FOLDER / "torch.txt"), f"{ROOT}[test]",
        )  # fmt: skip
    found = (each["metadata"] for each in json.loads(report)["install"])
    pinned = {_plain(each["name"]): each["version"] for each in found}
    return [f"{name}=={version}" for name, version in sorted(pinned.items()) if name != "sslengine"]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main(sys.argv[1:])
