"""Data as people have it, from files that other programs wrote: two steps of training, then a row of
features for each image, with its path and label."""

from __future__ import annotations

import csv
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

import sslengine
from sslengine.command.front import main
from sslengine.errors import ConfigError
from sslengine.monitor import history
from tests.command.photos import write_photos
from tests.tail import slow_but

pytestmark = pytest.mark.filterwarnings("ignore:Cannot .*MonthDayNano")

EACH, CLASSES = 6, ("dark", "light")
TRAINED = [
    "--method=simclr", "--model=test_resnet", "--size=32", "--workers=0", "--device=cpu",
    "--batch-size=4", "--set=OPTIMIZER.num_iterations=2",
]  # fmt: skip
FROM_PYTHON: dict[str, Any] = {
    "method": "simclr", "model": "test_resnet", "size": 32, "batch_size": 4, "workers": 0,
    "device": "cpu", "values": {"OPTIMIZER.num_iterations": 2},
}  # fmt: skip


class Kind(NamedTuple):
    """What is given to `train` and `embed`, and what is expected of each image."""

    data: Any
    paths: Sequence[str]
    labels: Sequence[str] | None = None
    options: Sequence[str] = ()  # of both
    of_training: Sequence[str] = ()
    trained_on: str = ""  # if `embed` takes other data


def photos(root: Path) -> list[Path]:
    return sorted(write_photos(root / "photos", each=EACH).rglob("*.png"))


def pixels(side: int = 36) -> np.ndarray:
    draw = np.random.default_rng(0)
    return draw.integers(0, 256, (2 * EACH, side, side, 3), np.uint8)


def names(files: Sequence[Path]) -> list[str]:
    return [file.parent.name for file in files]


NUMBERS = [str(number % 2) for number in range(2 * EACH)]


def folder(root: Path) -> Kind:
    files = photos(root)
    return Kind(root / "photos", list(map(str, files)), names(files))


def flat_folder(root: Path) -> Kind:
    files = photos(root)
    (root / "flat").mkdir()
    moved = [Path(shutil.move(file, root / "flat" / f"{n:02}.png")) for n, file in enumerate(files)]
    return Kind(root / "flat", list(map(str, moved)))


def found_by_find(root: Path) -> Kind:
    """A list of paths, as `find` prints it."""
    files = photos(root)
    done = subprocess.run(["find", "photos", "-name", "*.png"], cwd=root, check=True,
                          capture_output=True, text=True)  # fmt: skip
    (root / "l.txt").write_text(done.stdout)
    listed = [str(root / line) for line in done.stdout.splitlines()]
    assert sorted(listed) == [*map(str, files)]
    return Kind(root / "l.txt", listed)


def list_of_numpy(root: Path) -> Kind:
    files = photos(root)
    np.save(root / "l.npy", np.array([*map(str, files)]))
    return Kind(root / "l.npy", list(map(str, files)))


def table_of_pandas(root: Path, ending: str = "csv") -> Kind:
    pandas: Any = pytest.importorskip("pandas")
    files = photos(root)
    frame = pandas.DataFrame({
        "id": range(len(files)), "photo": [str(file.relative_to(root)) for file in files],
        "species": names(files),
    })  # fmt: skip
    place = root / f"table.{ending}"
    if ending == "parquet":
        frame.to_parquet(place)
    else:
        frame.to_csv(place, index=False)
    own = ["--image-column=photo", "--label-column=species"]
    return Kind(place, list(map(str, files)), names(files), own)


def array(root: Path) -> Kind:
    np.save(root / "images.npy", pixels().transpose(0, 3, 1, 2))
    return Kind(root / "images.npy", numbered("image", root / "images.npy"))


def arrays_with_labels(root: Path) -> Kind:
    np.savez(root / "all.npz", images=pixels(), labels=np.arange(2 * EACH) % 2)
    return Kind(root / "all.npz", numbered("image", root / "all.npz"), NUMBERS)


def numbered(what: str, place: Any, count: int = 2 * EACH) -> list[str]:
    return [f"{what} {number} of {place}" for number in range(count)]


def parquet_with_images(root: Path) -> Kind:
    """As hubs ship them: the files' bytes beside their names."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("datasets")
    files = photos(root)
    images = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    parquet.write_table(arrow.table({"image": images, "label": names(files)}), root / "a.parquet")
    return Kind(root / "a.parquet", numbered("row", root / "a.parquet"), names(files))


def of_datasets(root: Path, as_a_hub: bool = False) -> Kind:
    datasets: Any = pytest.importorskip("datasets")
    files = photos(root)
    kinds = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))}
    )
    rows = datasets.Dataset.from_dict(
        {"image": [*map(str, files)], "label": [CLASSES.index(each) for each in names(files)]},
        features=kinds,
    )
    place = root / "rows"
    if as_a_hub:
        (place / "data").mkdir(parents=True)
        rows.to_parquet(str(place / "data" / "train-00000-of-00001.parquet"))
    else:
        rows.save_to_disk(str(place))
    return Kind(place, numbered("row", place), names(files))


def shards(root: Path, of_package: bool = False) -> list[str]:
    """Of the program tar, or of the package webdataset: images and .cls; the names in them."""
    files = photos(root)
    (root / "shards").mkdir()
    members = []
    for number, file in enumerate(files):
        (root / f"{number:03}.cls").write_text(file.parent.name)
        shutil.copy(file, root / f"{number:03}.png")
        members.append(f"{number:03}.png")
    for shard in range(2):
        part = members[shard * EACH : (shard + 1) * EACH]
        place = root / "shards" / f"train-{shard}.tar"
        if of_package:
            webdataset: Any = pytest.importorskip("webdataset")
            with webdataset.TarWriter(str(place)) as writer:
                for name in part:
                    image, stem = Image.open(root / name), name[:3]
                    writer.write(
                        {"__key__": stem, "png": image, "cls": (root / f"{stem}.cls").read_text()}
                    )
        else:
            both = [each for name in part for each in (name, f"{name[:3]}.cls")]
            subprocess.run(["tar", "-cf", str(place), *both], cwd=root, check=True)
    return [f"{name} in {root}/shards/train-{n // EACH}.tar" for n, name in enumerate(members)]


def shards_of_tar(root: Path) -> Kind:
    found = shards(root)
    return Kind(root / "shards", found, ["dark"] * EACH + ["light"] * EACH)


def shards_of_the_package(root: Path) -> Kind:
    found = shards(root, of_package=True)
    return Kind(root / "shards" / "train-{0..1}.tar", found, ["dark"] * EACH + ["light"] * EACH)


def shards_on_a_server(root: Path) -> Kind:
    found = shards(root)
    return Kind(
        root / "shards", found, ["dark"] * EACH + ["light"] * EACH,
        of_training=["--length", str(2 * EACH)], trained_on="/train-{0..1}.tar",
    )  # fmt: skip


def read_as_a_stream(root: Path, kind: Callable[[Path], Kind]) -> Kind:
    return kind(root)._replace(of_training=["--stream", "--length", str(2 * EACH)])


def videos(root: Path) -> Kind:
    pytest.importorskip("av", reason="reads and writes videos")
    from tests.data.sources.videos import ramp, write_video

    for number, name in enumerate(CLASSES):
        write_video(root / "clips" / name / f"{number}.mp4", ramp(), "libx264")
    paths = [f"{root}/clips/{name}/{number}.mp4, frame {frame}" for number, name in enumerate(CLASSES)
             for frame in range(0, 50, 30)]  # fmt: skip
    return Kind(root / "clips", paths, [name for name in CLASSES for _ in range(2)],
                of_training=["--batch-size=2"])  # fmt: skip


def bands_of_tifffile(root: Path) -> Kind:
    tifffile: Any = pytest.importorskip("tifffile")
    draw = np.random.default_rng(0)
    for number, name in enumerate(CLASSES * EACH):
        values = draw.integers(100, 4000, (40, 44, 4), np.uint16)
        (root / "bands" / name).mkdir(parents=True, exist_ok=True)
        tifffile.imwrite(root / "bands" / name / f"{number:02}.tif", values,
                         planarconfig="contig", photometric="minisblack")  # fmt: skip
    files = sorted((root / "bands").rglob("*.tif"))
    return Kind(root / "bands", list(map(str, files)), names(files))


KINDS: dict[str, Callable[[Path], Kind]] = {
    "folder": folder, "flat folder": flat_folder, "list, find": found_by_find,
    "list, numpy": list_of_numpy, "csv, pandas": table_of_pandas,
    "parquet of paths, pandas": partial(table_of_pandas, ending="parquet"),
    "parquet of bytes, pyarrow": parquet_with_images,
    "parquet of a hub, datasets": partial(of_datasets, as_a_hub=True),
    "on disk, datasets": of_datasets, "npy, channels first": array, "npz with labels": arrays_with_labels,
    "shards, webdataset": shards_of_the_package,
    "shards on a server, tar": shards_on_a_server,
    "shards as a stream, tar": partial(read_as_a_stream, kind=shards_of_tar),
    "parquet of bytes as a stream, pyarrow": partial(read_as_a_stream, kind=parquet_with_images),
    "videos, FFmpeg": videos, "4 bands of 16 bits, tifffile": bands_of_tifffile,
}  # fmt: skip


@contextmanager
def served(folder: Path) -> Iterator[str]:
    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("name", slow_but(["list, find"], KINDS))
def test_from_files_to_rows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    kind, run, out = KINDS[name](tmp_path), tmp_path / "run", tmp_path / "rows.csv"
    remote = kind.trained_on.startswith("/train-")
    with served(kind.data) if remote else nullcontext("") as address:
        data = address + kind.trained_on if kind.trained_on else str(kind.data)
        arguments = [*TRAINED, *kind.options, *kind.of_training, "--out", str(run)]
        assert main(["train", data, *arguments]) == 0
    arguments = [*kind.options, "--out", str(out), "--workers=0", "--batch-size=500"]
    assert main(["embed", str(run), str(kind.data), *arguments]) == 0
    with out.open(newline="") as file:
        head, *rows = csv.reader(file)
    first = 1 if kind.labels is None else 2
    assert head[:first] == ["path", "label"][:first]
    assert [row[0] for row in rows] == list(kind.paths)
    if kind.labels is not None:
        assert [row[1] for row in rows] == list(kind.labels)
    features = np.array([row[first:] for row in rows], np.float32)
    assert np.isfinite(features).all()
    assert features.shape[1] == len(head) - first > 1


def test_a_dataset_of_the_hub_by_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`datasets` is asked for the name; here it finds a folder."""
    datasets: Any = pytest.importorskip("datasets")
    place, load = of_datasets(tmp_path, as_a_hub=True).data, datasets.load_dataset
    asked = []

    def find(name: str, *given: Any, **options: Any) -> Any:
        asked.append((name, options["split"], options["streaming"]))
        return load(str(place), *given, **options)

    monkeypatch.setattr(datasets, "load_dataset", find)
    command = ["train", "hf://datasets/me/birds", *TRAINED, "--out", str(tmp_path / "run")]
    assert main(command) == 2
    assert "Give the number of images of an epoch: --length N" in capsys.readouterr().err
    assert asked == []
    assert main([*command, "--length=12"]) == 0
    assert {*asked} == {("me/birds", "train", True)}
    assert len(history.read(tmp_path / "run", "step")) == 2
    embed = ["embed", str(tmp_path / "run"), "hf://datasets/me/birds", "--out"]
    assert main([*embed, str(tmp_path / "rows.csv")]) == 2
    assert "can only be trained on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (folder, "", "--stream .* is for .tar shards and parquet files .* at random, by disk_fold"),
        (of_datasets, "", "--stream .* at random, by huggingface_dataset"),
        (shards_of_tar, "", "read as a stream, which does not say how many images .* --length N"),
        (folder, "me/birds", "me/birds: there is no such .* the hub: hf://datasets/me/birds$"),
    ],
)
def test_what_cannot_be_read_as_a_stream(
    make: Callable[[Path], Kind], given: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        sslengine.train(given or make(tmp_path).data, stream=True, out=tmp_path / "run",
                        **FROM_PYTHON)  # fmt: skip
