from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sslengine.launch.slurm.snapshot import copy_code


def test_the_copy_is_what_runs_and_knows_where_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    (mine / "my_package").mkdir(parents=True)
    (mine / "my_package" / "__init__.py").write_text("")
    (mine / "my_package" / "method.py").write_text("VALUE = 1")
    (mine / "my_hook.py").write_text("VALUE = 2")
    monkeypatch.syspath_prepend(mine)
    plugins = ["my_package.method", "my_hook", "torch.nn", "sslengine.data", "json"]
    code = copy_code(tmp_path, plugins)
    assert sorted(path.name for path in code.iterdir()) == ["my_hook.py", "my_package", "sslengine"]
    assert not list(code.rglob("__pycache__"))
    (mine / "my_hook.py").write_text("VALUE = 'edited'")
    ask = (
        "import my_hook, my_package.method, sslengine\n"
        "from pathlib import Path\n"
        "from sslengine.monitor.code_version import code_version\n"
        "print(my_hook.VALUE, my_package.method.VALUE, sslengine.__file__)\n"
        "print(code_version(Path(sslengine.__file__).parent))\n"
    )
    # As a job does: in the copy, which `python -m` looks in first.
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=code, capture_output=True, text=True, check=True
    )
    values, version = done.stdout.splitlines()
    assert values == f"2 1 {code / 'sslengine' / '__init__.py'}"
    assert version == (code / "sslengine" / "COPIED_FROM").read_text().strip()
