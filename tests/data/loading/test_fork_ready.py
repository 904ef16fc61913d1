from __future__ import annotations

import subprocess
import sys

from sslengine.data.loading.loader import WORKER_MODULES


def test_what_was_imported_before_is_looked_at_no_more() -> None:
    code = "import gc, json, sslengine.data.loading.fork_ready; print(gc.get_freeze_count(), len(gc.get_objects()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    frozen, others = map(int, done.stdout.split())
    assert frozen > 1000 > others


def test_the_server_imports_it_last() -> None:
    assert WORKER_MODULES[-1] == "sslengine.data.loading.fork_ready"
