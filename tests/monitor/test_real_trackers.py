"""The packages themselves, offline, in an environment of their own: `make test-trackers`.

A run is killed and resumed by the real command; what the packages then have is read from their files.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import struct
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sslengine.monitor.history import read_nested
from tests import warm
from tests.engine.test_task import SUPERVISED, WITH_TEST
from tests.integration.command import COMMAND, write_config
from tests.monitor.fake_trackers import entry

pytestmark = pytest.mark.slow
BLOCK, HEAD = 32768, struct.Struct("<IHB")
Point = tuple[Any, float]  # step, value
SCORES = "from pathlib import Path; from sslengine.monitor.trackers import add_scores; " \
    "add_scores(Path('runs/tiny'), {'trained': {'knn_20': 82.5}})"  # fmt: skip


class Kept:
    """What a package has kept of all starts of the run."""

    def __init__(self) -> None:
        self.points: dict[str, list[Point]] = defaultdict(list)
        self.ids: set[str] = set()
        self.config: Any = None
        self.images = 0
        self.state: Any = None

    def add(self, name: str, step: Any, value: Any) -> None:
        if isinstance(value, (int, float)):
            self.points[name].append((step, float(value)))
        self.images += name == "train/first" and not isinstance(value, (int, float))


def _records(file: Path) -> Iterator[bytes]:
    """wandb and swanlab write the log format of LevelDB, behind seven bytes of their own."""
    data, at, parts = file.read_bytes(), 7, b""
    while at + HEAD.size <= len(data):
        if BLOCK - at % BLOCK < HEAD.size:
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = HEAD.unpack_from(data, at)
        parts += data[at + HEAD.size : at + HEAD.size + size]
        at += HEAD.size + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def of_wandb(folder: Path, kept: Kept) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    for file in sorted(folder.glob("runs/tiny/trackers/wandb/offline-run-*/*.wandb")):
        for record in map(Record.FromString, _records(file)):
            if record.HasField("run"):
                kept.ids.add(record.run.run_id)
                found = {each.key: json.loads(each.value_json) for each in record.run.config.update}
                kept.config = kept.config or found
            if record.HasField("exit"):
                kept.state = record.exit.exit_code
            for item in record.history.item:
                name = item.key or "/".join(item.nested_key)
                kept.add(name, record.history.step.num, json.loads(item.value_json))
                kept.images += name == "train/first/_type"
            for item in record.summary.update:
                if "judge" in (name := item.key or "/".join(item.nested_key)):
                    kept.points[name] = [(None, json.loads(item.value_json))]


def of_swanlab(folder: Path, kept: Kept) -> None:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record

    for file in sorted(folder.glob("runs/tiny/trackers/swanlog/run-*/*.swanlab")):
        for record in map(Record.FromString, _records(file)):
            if record.HasField("start"):
                kept.ids.add(record.start.id)
            if record.HasField("scalar"):
                kept.add(record.scalar.key, record.scalar.step, record.scalar.value.number)
            if record.HasField("finish"):
                kept.state = record.finish.state
            kept.images += record.HasField("media") and record.media.key == "train/first"
        config = file.parent / "files" / "config.yaml"
        if config.is_file():
            found = yaml.safe_load(config.read_text()).items()
            kept.config = {name: each["value"] for name, each in found}


def of_trackio(folder: Path, kept: Kept) -> None:
    with sqlite3.connect(folder / "trackio" / "sslengine.db") as store:
        for run, step, row in store.execute("select run_id, step, metrics from metrics"):
            kept.ids.add(run)
            for name, value in json.loads(row).items():
                kept.add(name, step, value)
        ((config,),) = store.execute("select config from configs")
        kept.config = json.loads(config)


def of_mlflow(folder: Path, kept: Kept) -> None:
    with sqlite3.connect(folder / "mlflow.db") as store:
        for name, step, value in store.execute("select key, step, value from metrics"):
            kept.add(name, step, value)
        ((run, kept.state),) = store.execute("select run_uuid, status from runs")
        kept.ids = {run}
    (config,) = folder.glob("mlruns/**/artifacts/config.yaml")
    kept.config = yaml.safe_load(config.read_text())
    kept.images = len([*config.parent.glob("images/train?first*.png")])


READERS: dict[str, Callable[[Path, Kept], None]] = {
    "wandb": of_wandb, "trackio": of_trackio, "swanlab": of_swanlab, "mlflow": of_mlflow,
}  # fmt: skip


def _prepare(folder: Path, package: str, **more: Any) -> dict[str, str]:
    """Write a run that ends once; returns the environment of its command."""
    (folder / "trackio").mkdir()
    store = {"tracking_uri": f"sqlite:///{folder}/mlflow.db"}
    sent = entry(package, **store if package == "mlflow" else {"offline": True})
    write_config(
        folder, **SUPERVISED, **WITH_TEST, LOG_FREQUENCY=1, HOOKS__WRITERS=["json", sent],
        HOOKS__EXTRA=[{"name": "kills_once:EndOnce", **more}], CHECKPOINT__CHECKPOINT_ITER_FREQUENCY=3,
    )  # fmt: skip
    shutil.copy(Path(__file__).with_name("kills_once.py"), folder)
    return {**os.environ, "TRACKIO_DIR": str(folder / "trackio")}


@pytest.mark.parametrize("package", READERS)
def test_a_run_that_is_killed_and_resumed_is_one_run(tmp_path: Path, package: str) -> None:
    """The last steps may be there twice, with the same values."""
    pytest.importorskip(package)
    env = _prepare(tmp_path, package, after=5)
    for command, status in ((COMMAND, -9), (COMMAND, 0), ([sys.executable, "-c", SCORES], 0)):
        done = warm.run(command, cwd=tmp_path, env=env)
        assert (done.returncode == 0) == (status == 0), done.stderr
    kept = Kept()
    READERS[package](tmp_path, kept)
    lines = read_nested(tmp_path / "runs" / "tiny" / "metrics.jsonl")
    for name, place in (("train/loss", ["step", "train"]), ("test_phase/loss", ["phase", "test"])):
        chosen = [each for each in lines if [each["kind"], each["split"]] == place]
        made = [(each["iteration"], each["loss"]) for each in chosen]
        found = kept.points[name]
        assert sorted({*found}) == [(step, pytest.approx(loss, rel=1e-6)) for step, loss in made]
    assert "train/time" not in kept.points
    assert [value for _, value in kept.points["judge/trained/knn_20"]] == [82.5]
    assert len(kept.ids) == 1
    assert kept.config["LOSS"]["name"] == SUPERVISED["LOSS"]["name"]
    assert kept.images


@pytest.mark.parametrize(("package", "state"), [("wandb", 1), ("swanlab", 2), ("mlflow", "FAILED")])
def test_a_run_that_fails_is_shown_as_failed(tmp_path: Path, package: str, state: Any) -> None:
    pytest.importorskip(package)
    env = _prepare(tmp_path, package, after=2, fails=True)
    assert warm.run(COMMAND, cwd=tmp_path, env=env).returncode == 1
    kept = Kept()
    READERS[package](tmp_path, kept)
    assert kept.state == state
