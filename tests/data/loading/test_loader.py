from __future__ import annotations

import contextlib
import multiprocessing.spawn
import os
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data

from sslengine.data.loading.loader import main_hidden
from sslengine.errors import DataError
from tests.data.test_feed import feed

TO_TENSOR = {"name": "ToTensor"}


def probe(name: str) -> dict[str, Any]:
    return {"name": f"tests.data.probes:{name}"}


class Holder:
    """A transform that cannot be sent to another process."""

    def __init__(self) -> None:
        self.function = lambda image: image

    def __call__(self, image: Any) -> Any:
        return self.function(image)


SCRIPT = """
import sys
import imported_by_the_script
import sslengine.data.loading.lean_torchvision  # half the time
from sslengine.data.feed import DataFeed
from sslengine.data.options import DataOptions, SplitOptions

class Own:
    def __call__(self, image):
        return image.crop((0, 0, 5, 5))

kept = []

def run(*names):
    transforms = [{"name": name} for name in names]
    split = SplitOptions(DATA_SOURCES=["synthetic"], DEFAULT_GRAY_IMG_SIZE=8, DATA_LIMIT=10000,
                         LABEL_TYPE="zero", TRANSFORMS=transforms, BATCHSIZE_PER_REPLICA=2)
    options = DataOptions(TRAIN=split, NUM_DATALOADER_WORKERS=1, AUGMENT_BACKEND="pil")
    feed = DataFeed(options, "TRAIN", training=True, seed=0)
    batches = feed.batches()
    batch = next(batches)
    kept.append((feed, batches))
    print(batch["marker"][0].tolist(), batch["heavy"][0].tolist(), list(batch["data"][0].shape),
          flush=True)

if __name__ == "__main__":
    import __main__
    run("ToTensor", "tests.data.probes:ProcessProbe")
    run("__main__:Own", "ToTensor", "tests.data.probes:ProcessProbe")
    input()
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run as a user runs it, in a session of its own."""
    (tmp_path / "imported_by_the_script.py").touch()
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-W", "error", tmp_path / "script.py"]
    with (tmp_path / "stderr").open("w") as stderr:
        main = subprocess.Popen(
            command, env={"PYTHONPATH": f"{Path(__file__).parents[3]}:{tmp_path}"}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True,
        )  # fmt: skip
    yield main
    for pid in _session(main.pid):
        os.kill(pid, signal.SIGKILL)
    main.communicate()


@pytest.mark.slow
def test_the_workers_of_a_script(script: subprocess.Popen[str], tmp_path: Path) -> None:
    """One imports the script only if it needs it. They end with a main process that is killed."""
    assert script.stdout is not None
    told = [script.stdout.readline() for _ in range(2)]
    stderr = (tmp_path / "stderr").read_text()
    assert told == ["[0, 0] [0, 0] [2, 3, 8, 8]\n", "[1, 1] [0, 0] [2, 3, 5, 5]\n"], stderr
    assert stderr == ""
    assert len(_session(script.pid)) >= 4  # it, the server, two workers
    script.kill()
    script.wait()
    deadline = time.monotonic() + 30
    while left := _session(script.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_main_is_hidden_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    script = types.ModuleType("__main__")
    script.__file__ = "/some/script.py"
    monkeypatch.setitem(sys.modules, "__main__", script)
    told = ("init_main_from_path", "init_main_from_name")
    assert any(key in multiprocessing.spawn.get_preparation_data("child") for key in told)
    with main_hidden():
        assert not any(key in multiprocessing.spawn.get_preparation_data("child") for key in told)
    assert sys.modules["__main__"] is script


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_a_worker_reads_as_one_in_the_main_process(workers: int) -> None:
    failing = feed(workers, TRANSFORMS=[probe("Failing"), TO_TENSOR])
    with pytest.raises(DataError) as caught:
        list(failing.batches(0))
    failing.close()
    text = str(caught.value)
    assert text.startswith("config.DATA.TRAIN.TRANSFORMS.0 (tests.data.probes:Failing) failed on")
    assert text.endswith("ArithmeticError: no such luck")
    # For the log, the whole story.
    assert "Failing" in str(caught.value.__cause__)


def test_a_worker_that_dies_is_told_with_its_sample() -> None:
    source = {"DATA_SOURCES": ["tests.data.probes:DeadlySource"], "DATA_LIMIT": -1}
    dying = feed(
        2, training=False, TRANSFORMS=[TO_TENSOR], COLLATE_FUNCTION="default_collate", **source
    )
    message = (
        r"A loader worker died: .*\n  Worker 1 was at sample 6: /data/6\.jpg\n"
        r".*NUM_DATALOADER_WORKERS"
    )
    with pytest.raises(DataError, match=message):
        list(dying.batches(0))
    dying.close()


@pytest.mark.timeout(60)
def test_workers_that_hang_end_the_run_and_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    # So long torch waits for each of them to end by itself, before it ends them.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    hanging = feed(2, TRANSFORMS=[probe("Hanging")], WORKER_TIMEOUT=1.0)
    batches = hanging.batches(0)
    workers = hanging._loader._loader._iterator._workers  # type: ignore[union-attr]
    began = time.monotonic()
    while (hanging._loader._places < 0).any() and time.monotonic() < began + 120:
        time.sleep(0.05)  # until both are at work
    with pytest.raises(DataError) as caught:
        next(batches)
    told = str(caught.value)
    assert told.startswith("the loader workers gave no batch for 1 seconds (config.DATA.WORKER_TIM")
    for worker in range(2):
        assert re.search(rf"\n  Worker {worker} was at sample \d+: image \d+ of Synthetic", told)
    hanging.close()
    for worker in workers:  # that they were told to end is enough for some versions of torch
        worker.join(30)
    assert not any(worker.is_alive() for worker in workers)


def test_what_cannot_be_sent_to_a_worker() -> None:
    entry = {"name": "tests.data.loading.test_loader:Holder"}
    with pytest.raises(DataError, match=r"cannot be sent to loader workers: .*hold no lambda"):
        feed(1, TRANSFORMS=[entry])
    assert feed(0, TRANSFORMS=[entry, TO_TENSOR]).num_samples == 22


def _session(leader: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(stat.parent.name))
    return found
