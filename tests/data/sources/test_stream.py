"""Streams: tar shards on a server, and a dataset as the hub ships it. Their images say which they
are; what belongs where follows from the order of shards and of samples in them."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from sslengine.config.resolve import resolve_dict
from sslengine.data.feed import DataFeed
from sslengine.data.options import DataOptions, split_options
from sslengine.data.sources.base import build_sources
from sslengine.data.sources.labels import count_train_classes
from sslengine.data.sources.stream import StreamSource
from sslengine.data.sources.tar import TarStream
from sslengine.errors import CheckpointError, ConfigError, DataError, UntrustedError
from sslengine.monitor import history
from sslengine.trust import Opened, closed
from tests import warm
from tests.data.pictures import picture
from tests.data.sources.test_tar import png, write_shard
from tests.engine.runs import make_task
from tests.integration.command import ROOT, same_weights
from tests.methods.resuming import assert_goes_on_bit_by_bit
from tests.ranks import RankPool
from tests.tail import slow_but

pytestmark = pytest.mark.filterwarnings("ignore:Cannot .*MonthDayNano")

SOURCES = ["webdataset_stream", "huggingface_stream"]
SHARDS, EACH = 4, 6
COUNT = SHARDS * EACH
TENSOR = [{"name": "ToTensor"}]


class Server(ThreadingHTTPServer):
    daemon_threads = True
    # Of these files so many answers end in the middle.
    cut: Counter[str] = Counter()
    asked: Counter[str] = Counter()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(SimpleHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None: ...

    def copyfile(self, source: Any, outputfile: Any) -> None:
        name = self.path.strip("/")
        self.server.asked[name] += 1
        content = source.read()
        if self.server.cut[name] > 0:
            self.server.cut[name] -= 1
            content = content[: len(content) // 2]
        outputfile.write(content)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stream")
    for shard in range(SHARDS):
        numbers = range(shard * EACH, (shard + 1) * EACH)
        members = {f"{number:04}.png": png(number) for number in numbers}
        write_shard(root / f"train-{shard}.tar", members)
    return root


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as serving:
        serving.cut, serving.asked = Counter(), Counter()
        thread = threading.Thread(target=serving.serve_forever, args=(0.02,))
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


@pytest.fixture(params=SOURCES)
def stream(request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    """Keys of a split."""
    if request.param == "webdataset_stream":
        server: Server = request.getfixturevalue("server")
        path = f"{server.address}/train-{{0..{SHARDS - 1}}}.tar"
    else:
        path = str(hub(folder))
    return keys(request.param, path)


def keys(source: str, path: str, **more: Any) -> dict[str, Any]:
    return {
        "DATA_SOURCES": [source], "DATA_PATHS": [path], "LENGTH": COUNT, "LABEL_TYPE": "zero",
        "BATCHSIZE_PER_REPLICA": 3, "READ_RETRY_WAIT": 0.01, "TRANSFORMS": TENSOR, **more,
    }  # fmt: skip


def hub(folder: Path) -> Path:
    """A folder of parquet files, which `datasets` writes."""
    datasets: Any = pytest.importorskip("datasets", reason="reads its data sets")
    kinds = datasets.Features({"image": datasets.Image()})
    for shard in range(SHARDS):
        numbers = range(shard * EACH, (shard + 1) * EACH)
        file = folder / "hub" / "data" / f"train-{shard:05}-of-{SHARDS:05}.parquet"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            images = [{"bytes": png(number), "path": None} for number in numbers]
            rows = datasets.Dataset.from_dict({"image": images}, features=kinds)
            rows.to_parquet(str(file))
    return folder / "hub"


KNOWN = {picture(number).tobytes(): number for number in range(COUNT)}


def numbers(
    split: dict[str, Any], workers: int = 0, first: int = 0, epoch: int = 0, rank: int = 0,
    ranks: int = 1,
) -> list[list[int]]:  # fmt: skip
    """Which images are in each batch."""
    options = DataOptions(TRAIN=split_options(**split), NUM_DATALOADER_WORKERS=workers)
    feed = DataFeed(options, "TRAIN", training=True, seed=5, rank=rank, world_size=ranks)
    try:
        batches = [batch["data"][0] for batch in feed.batches(epoch, first)]
    finally:
        feed.close()
    as_bytes = [(255 * each).round().byte().permute(0, 2, 3, 1).numpy() for each in batches]
    return [[KNOWN[image.tobytes()] for image in batch] for batch in as_bytes]


def flat(lists: Any) -> list[Any]:
    return list(chain.from_iterable(lists))


def test_each_sample_once_over_ranks_and_lanes(stream: dict[str, Any]) -> None:
    split = {**stream, "LANES": 2, "SHUFFLE": 4}
    ranks = [numbers(split, rank=rank, ranks=2) for rank in range(2)]
    assert sorted(flat(flat(ranks))) == list(range(COUNT))
    for batch in flat(ranks):  # of one lane, which has one shard here
        assert len({number // EACH for number in batch}) == 1
    assert [len(each) for each in ranks] == [4, 4]
    assert ranks[0] != [numbers(split, epoch=1, rank=0, ranks=2)]
    in_order = numbers({**stream, "SHUFFLE": 1, "BATCHSIZE_PER_REPLICA": EACH})
    assert sorted(in_order) == [list(range(n, n + EACH)) for n in range(0, COUNT, EACH)]


def test_an_epoch_resumes_at_any_step_with_any_workers(stream: dict[str, Any]) -> None:
    split = {**stream, "LANES": 2, "SHUFFLE": 4}
    whole = numbers(split, epoch=3)
    for first in (1, 2, 5):
        assert numbers(split, first=first, epoch=3) == whole[first:]
    assert numbers(split, workers=2, first=1, epoch=3) == whole[1:]


def test_an_epoch_longer_than_the_stream_and_a_shorter_one(stream: dict[str, Any]) -> None:
    longer = numbers({**stream, "LENGTH": COUNT + 10})
    assert len(flat(longer)) == COUNT + 12  # full batches
    assert Counter(Counter(flat(longer)).values()) == {1: 12, 2: 12}
    assert len(numbers({**stream, "LENGTH": 10, "DROP_LAST": True})) == 3


def test_a_connection_that_breaks_is_tried_again(server: Server) -> None:
    split = keys("webdataset_stream", f"{server.address}/train-{{0..3}}.tar")
    server.cut["train-2.tar"] = 2
    assert sorted(flat(numbers(split))) == list(range(COUNT))
    assert server.asked["train-2.tar"] == 3
    server.cut["train-2.tar"] = 10
    with pytest.raises(DataError, match=r"part 2 cannot be read \(tried 4 times\): .*bytes came"):
        numbers(split)
    before = server.asked.total()
    with pytest.raises(DataError, match=r"train-9.tar: the server answers 404"):
        numbers(keys("webdataset_stream", f"{server.address}/train-9.tar"))
    assert server.asked.total() == before


def test_an_unreadable_image_is_replaced_by_one_of_its_batch(tmp_path: Path) -> None:
    members = {f"{number}.png": png(number) for number in range(6)} | {"4.png": b"no image"}
    shard = write_shard(tmp_path / "one.tar", members)
    split = keys("webdataset_stream", str(shard), LENGTH=6, SHUFFLE=1)
    one, two = numbers(split)
    assert one == [0, 1, 2]
    assert two[0] == 3
    assert two[1] in (3, 5)
    assert two[2] == 5


def test_rows_without_an_image_are_replaced_too(tmp_path: Path) -> None:
    """A null, and a file that is not there."""
    datasets: Any = pytest.importorskip("datasets", reason="reads its data sets")
    images = [{"bytes": png(number), "path": None} for number in range(6)]
    stored = [*images[:3], None, {"bytes": None, "path": str(tmp_path / "gone.png")}, images[5]]
    arrow: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    schema = datasets.Features({"image": datasets.Image()}).arrow_schema
    file = tmp_path / "rows.parquet"  # `datasets` itself would look for gone.png
    rows = [{"image": each} for each in stored]
    parquet.write_table(arrow.Table.from_pylist(rows, schema), str(file))
    split = keys("huggingface_stream", str(file), LENGTH=6, SHUFFLE=1)
    assert numbers(split) == [[0, 1, 2], [5, 5, 5]]
    (source,) = build_sources(split_options(**split), "TRAIN")
    assert isinstance(source, StreamSource)
    source.fetch(0, 0, [3, 4])
    assert source.path(3) == "row 3 of shard 0 (it has no image)"
    assert "gone.png" in source.path(4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"LENGTH": 0}, "LENGTH: a stream does not say how many images"),
        ({"LANES": 9}, "4 parts .* for 1 processes with 9 lanes"),
    ],
)
def test_what_a_stream_needs(folder: Path, changes: dict[str, Any], message: str) -> None:
    split = keys("webdataset_stream", str(folder / "train-{0..3}.tar"), **changes)
    with pytest.raises(DataError, match=message):
        numbers(split)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ({"LABEL_TYPE": "sample_index"}, {}, "expected zero, or standard .*; got sample_index"),
        ({"CLASSES": ["a"]}, {}, "CLASSES: expected two names or more, or a number"),
        ({"LABEL_PATHS": ["x.npy"]}, {}, "LABEL_PATHS: .* beside their images"),
        ({"DATA_LIMIT": 5}, {}, "TRAIN.DATA_LIMIT: has no effect on webdataset_stream"),
        ({}, {"DATA_SOURCES": ["webdataset_stream"], "LABEL_TYPE": "zero"}, "TEST.DATA_SOURCES: "),
    ],
)
def test_what_a_stream_cannot_do_is_refused(
    folder: Path, train: dict[str, Any], test: dict[str, Any], message: str
) -> None:
    split = keys("webdataset_stream", str(folder / "train-0.tar"), **train)
    with pytest.raises(ConfigError, match=message):
        resolve_dict({"DATA": {"TRAIN": split, "TEST": test}})


NAMES = ["bird", "cat", "dog"]


def labelled(source: str, folder: Path, labels: list[Any], **more: Any) -> dict[str, Any]:
    """Keys of a split whose sample n has labels[n]."""
    of_all = {"LABEL_TYPE": "standard", "LABEL_SOURCES": [source], "LENGTH": len(labels), **more}
    if source == "webdataset_stream":
        members = {}
        for number, label in enumerate(labels):
            members |= {f"{number}.png": png(number)}
            members |= {} if label is None else {f"{number}.cls": str(label).encode()}
        return keys(source, str(write_shard(folder / "labelled.tar", members)), **of_all)
    datasets: Any = pytest.importorskip("datasets", reason="reads its data sets")
    images = [{"bytes": png(number), "path": None} for number in range(len(labels))]
    known = datasets.ClassLabel(names=NAMES) if "CLASSES" not in more else None
    kinds = {"image": datasets.Image(), **({"label": known} if known else {})}
    rows = datasets.Dataset.from_dict({"image": images, "label": labels})
    rows = rows.cast(datasets.Features({**rows.features, **kinds}))
    (folder / "data").mkdir()
    rows.to_parquet(str(folder / "data" / "train.parquet"))
    return keys(source, str(folder), **of_all)


@pytest.mark.parametrize(
    ("source", "labels", "more"),
    [
        ("webdataset_stream", ["cat", "dog", "bird", "cat", "dog", "bird"], {"CLASSES": NAMES}),
        ("webdataset_stream", [1, 2, 0, 1, 2, "0.0"], {"CLASSES": 3}),
        ("huggingface_stream", [1, 2, 0, 1, 2, 0], {}),
    ],
)
def test_labels_of_a_stream(
    source: str, labels: list[Any], more: dict[str, Any], tmp_path: Path
) -> None:
    """Each image comes with its own, in whatever order; the run knows the classes."""
    split = split_options(**labelled(source, tmp_path, labels, **more))
    options = DataOptions(TRAIN=split, NUM_DATALOADER_WORKERS=0)
    feed = DataFeed(options, "TRAIN", training=True, seed=5)
    expected = [1, 2, 0, 1, 2, 0]
    found = {}
    for batch in feed.batches(1):
        images = (255 * batch["data"][0]).round().byte().permute(0, 2, 3, 1).numpy()
        found |= dict(zip((KNOWN[each.tobytes()] for each in images), batch["label"][0].tolist()))
    feed.close()
    assert found == dict(enumerate(expected))
    (classes,) = feed.classes
    assert classes.names == (() if more.get("CLASSES") == 3 else tuple(NAMES))
    assert count_train_classes(split) == 3


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        (
            ["cat", "cta"],
            NAMES,
            r"1.png in .*labelled.tar has the label 'cta'; .* Did you mean 'cat'",
        ),
        ([0, 3], 3, r"1.png in .* has the label '3'; expected one of 3"),
        ([0, None], 3, r"1.png in .* has the label 'None'"),
        ([0, 1], "", r"config.DATA.TRAIN.CLASSES: the labels of a stream are asked for"),
    ],
)
def test_labels_that_are_no_classes(
    labels: list[Any], classes: Any, message: str, tmp_path: Path
) -> None:
    split = labelled(
        "webdataset_stream", tmp_path, labels, CLASSES=classes, BATCHSIZE_PER_REPLICA=2
    )
    with pytest.raises(DataError, match=message):
        numbers(split)


def test_no_server_is_contacted_for_a_config_from_elsewhere(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Braces make an address of what is a file here too."""
    local = tmp_path / f"{server.address}/train-0.tar"
    local.parent.mkdir(parents=True)
    local.touch()
    monkeypatch.chdir(tmp_path)
    for slashes in ("//", "{/,/}/"):
        path = f"{server.address}/train-0.tar".replace("//", slashes)
        split = split_options(**keys("webdataset_stream", path))
        with closed(Opened("theirs.yaml")), pytest.raises(UntrustedError, match="from the network"):
            build_sources(split, "TRAIN")


def test_datasets_of_a_config_from_elsewhere(tmp_path: Path, server: Server) -> None:
    """The card of a folder may name addresses, and old `datasets` run a script that is in it."""
    datasets: Any = pytest.importorskip("datasets", reason="reads its data sets")
    arrow: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    schema = datasets.Features({"image": datasets.Image()}).arrow_schema
    rows = [{"image": {"bytes": None, "path": f"{server.address}/x.png"}}]
    parquet.write_table(arrow.Table.from_pylist(rows, schema), str(tmp_path / "rows.parquet"))
    with closed(Opened("theirs.yaml")):
        with pytest.raises(UntrustedError, match="from the network"):
            build_sources(split_options(**keys("huggingface_stream", str(tmp_path))), "TRAIN")
        split = split_options(**keys("huggingface_stream", str(tmp_path / "rows.parquet")))
        (source,) = build_sources(split, "TRAIN")
        with pytest.raises(UntrustedError, match=r"x.png' may be read from the network"):
            next(source.part(0))


def test_a_worker_reads_a_shard_once_in_an_epoch(folder: Path) -> None:
    """As its places follow each other."""
    split = split_options(**keys("webdataset_stream", str(folder / "train-{0..3}.tar")))
    (source,) = build_sources(split, "TRAIN")
    assert isinstance(source, TarStream)
    opened: list[int] = []
    part = source.part
    source.part = lambda number: opened.append(number) or part(number)  # type: ignore[method-assign, func-returns-value]
    source.distribute(3, 1, 0, 0)
    for first in range(0, COUNT, 3):
        StreamSource.fetch(source, 0, 0, range(first, first + 3))
    assert sorted(opened) == list(range(SHARDS))


# --- a run


def _changes(path: str, source: str) -> dict[str, Any]:
    split = keys(source, path, COLLATE_FUNCTION="simclr_collator", SHUFFLE=4, LANES=1)
    views = [{"name": "ImgReplicatePil", "num_times": 2}, *TENSOR]
    return {
        "DATA__TRAIN": {**split, "TRANSFORMS": views},
        "DATA__NUM_DATALOADER_WORKERS": 0,
        "OPTIMIZER__num_epochs": 2,
    }


def _resumes(folder: Path, changes: dict[str, Any], after: int) -> None:
    assert_goes_on_bit_by_bit(folder, after, **changes)


@pytest.mark.parametrize("stream", slow_but(["webdataset_stream"], SOURCES), indirect=True)
def test_a_run_resumes_bit_by_bit(stream: dict[str, Any], tmp_path: Path) -> None:
    changes = _changes(stream["DATA_PATHS"][0], stream["DATA_SOURCES"][0])
    _resumes(tmp_path, changes, after=5)  # of 8 in an epoch


@pytest.mark.parametrize("stream", ["webdataset_stream"], indirect=True)
def test_a_run_with_other_lanes_is_refused(stream: dict[str, Any], tmp_path: Path) -> None:
    """Without LANES there are as many as workers, and a step has other images."""
    changes = _changes(stream["DATA_PATHS"][0], stream["DATA_SOURCES"][0])
    state = make_task(tmp_path, [], **changes).get_classy_state()
    changes["DATA__TRAIN"]["LANES"] = 2
    with pytest.raises(CheckpointError, match="in ranks x LANES: 1 x 1 -> 1 x 2"):
        make_task(tmp_path, [], **changes).set_classy_state(state)


@pytest.mark.slow
def test_a_run_of_two_ranks_resumes_bit_by_bit(stream: dict[str, Any], tmp_path: Path) -> None:
    changes = _changes(stream["DATA_PATHS"][0], stream["DATA_SOURCES"][0])
    with RankPool(2) as ranks:
        ranks.run(_resumes, tmp_path, changes, 3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_killed_and_started_again_with_workers(
    stream: dict[str, Any], tmp_path: Path
) -> None:
    """SIGKILL in step 5 of 8 of an epoch; the newest checkpoint is of step 3."""
    source, (path,) = stream["DATA_SOURCES"][0], stream["DATA_PATHS"]
    dies = "--set=HOOKS.EXTRA=[tests.methods.outside.dying:DieOnce]"
    keys = (
        "DATA.TRAIN.SHUFFLE=4", "OPTIMIZER.num_epochs=2", "LOG_FREQUENCY=1",
        "CHECKPOINT.CHECKPOINT_ITER_FREQUENCY=3",
    )  # fmt: skip
    options = [
        "--stream", "--length", str(COUNT), "--workers=2", "--batch-size=3", "--size=32",
        "--method=simclr", "--model=test_resnet", "--device=cpu", *(f"--set={key}" for key in keys),
    ]  # fmt: skip
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    ends = []
    for more in (["--out", str(whole)], *[["--out", str(killed), dies]] * 2):
        command = [sys.executable, "-m", "sslengine", "train", path, *options, *more]
        done = warm.run(command, cwd=ROOT)
        ends.append(done.returncode)
    assert ends == [0, -signal.SIGKILL, 0]
    assert re.search(r"resumed from .*, step 3 of 8", done.stdout + done.stderr)
    config = (killed / "config.yaml").read_text()
    assert source in config
    losses, expected = (
        {step["iteration"]: step["loss"] for step in history.read(run, "step")}
        for run in (killed, whole)
    )
    assert losses == expected
    assert len(losses) == 16
    assert same_weights(whole, killed)
