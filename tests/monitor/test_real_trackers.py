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

from tests import warm
from tests.integration.command import COMMAND, write_config
from tests.monitor.fake_trackers import entry
from tests.task.test_task import SUPERVISED, WITH_TEST

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
        kept.ids = {run for (run,) in store.execute("select run_uuid from runs")}
    (config,) = folder.glob("mlruns/**/artifacts/config.yaml")
    kept.config = yaml.safe_load(config.read_text())
    kept.images = len([*config.parent.glob("images/train~first*.png")])


READERS: dict[str, Callable[[Path, Kept], None]] = {
    "wandb": of_wandb, "trackio": of_trackio, "swanlab": of_swanlab, "mlflow": of_mlflow,
}  # fmt: skip


@pytest.mark.parametrize("waits", [True, False], ids=["once-it-is-noted", "at-once"])
@pytest.mark.parametrize("package", READERS)
def test_killed_and_resumed(tmp_path: Path, package: str, waits: bool) -> None:
    """What is noted is there once; of the last seconds before a kill nothing is missing."""
    pytest.importorskip(package)
    (tmp_path / "trackio").mkdir()
    kill = {"name": "kills_once:KillOnce", "after": 5, "package": package, "waits": waits}
    store = {"tracking_uri": f"sqlite:///{tmp_path}/mlflow.db"}
    more = store if package == "mlflow" else {"offline": True}
    write_config(
        tmp_path, **SUPERVISED, **WITH_TEST, LOG_FREQUENCY=1, HOOKS__EXTRA=[kill],
        HOOKS__WRITERS=["json", entry(package, **more)], CHECKPOINT__CHECKPOINT_ITER_FREQUENCY=3,
    )  # fmt: skip
    shutil.copy(Path(__file__).with_name("kills_once.py"), tmp_path)
    env = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")}
    for command, status in ((COMMAND, -9), (COMMAND, 0), ([sys.executable, "-c", SCORES], 0)):
        done = warm.run(command, cwd=tmp_path, env=env)
        assert (done.returncode == 0) == (status == 0), done.stderr
    kept = Kept()
    READERS[package](tmp_path, kept)
    text = (tmp_path / "runs" / "tiny" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    for name, place in (("train/loss", ["step", "train"]), ("test_phase/loss", ["phase", "test"])):
        chosen = [each for each in lines if [each["kind"], each["split"]] == place]
        made = [(each["iteration"], each["loss"]) for each in chosen]
        found = kept.points[name]
        assert sorted(found if waits else {*found}) == [
            (step, pytest.approx(loss, rel=1e-6)) for step, loss in made
        ]
    assert [value for _, value in kept.points["judge/trained/knn_20"]] == [82.5]
    assert len(kept.ids) == 1
    assert kept.config["LOSS"]["name"] == SUPERVISED["LOSS"]["name"]
    assert kept.images or not waits  # metrics.jsonl has no pictures
