"""Folders: which files in them are read, and which of the folders of a set's splits."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from sslengine.command.data import source_of
from sslengine.command.embed import embed
from sslengine.command.front import main
from sslengine.engines.train import train
from tests.command.photos import SMALL, write_photos
from tests.data.sources.test_tar import write_shard
from tests.data.sources.videos import noise, write_video
from tests.engines.runs import make_run
from tests.predictor.runs import changes

TRAIN = ["--method=simclr", "--model=resnet10t", *SMALL, "--batch-size=4"]


def image(number: int) -> bytes:
    file = io.BytesIO()
    draw = np.random.default_rng(number).integers(0, 255, (40, 48, 3))
    Image.fromarray(draw.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def shard(path: Path, count: int = 8) -> Path:
    return write_shard(path, {f"{number}.png": image(number) for number in range(count)})


def table(path: Path, count: int = 8) -> Path:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.table({"image": [image(each) for each in range(count)]}), path)
    return path


def read(path: Path, capfd: pytest.CaptureFixture[str], *more: str) -> tuple[str, Any]:
    """What the command says of the images, and their part of the config."""
    capfd.readouterr()
    assert main(["train", str(path), *TRAIN, *more, "--show"]) == 0
    told, _, config = capfd.readouterr().out.partition("# @package")
    return told, yaml.safe_load(config.partition("\n")[2])["config"]["DATA"]["TRAIN"]


def refused(path: Path, capfd: pytest.CaptureFixture[str], status: int) -> str:
    assert main(["train", str(path), *TRAIN, "--show"]) == status
    return " ".join(capfd.readouterr().err.split())


@pytest.fixture
def reversed_folders(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Another file system lists them in another order."""
    listed = os.scandir

    class Reversed:
        def __init__(self, path: Any) -> None:
            with listed(path) as entries:
                self.entries = sorted(entries, key=lambda each: each.name, reverse=True)

        def __enter__(self) -> Iterator[Any]:
            return iter(self.entries)

        def __exit__(self, *_: object) -> None:
            pass

    return lambda: monkeypatch.setattr(os, "scandir", Reversed)


def test_photos_beside_a_clip_and_a_backup(
    tmp_path: Path, reversed_folders: Callable[[], None], capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    folder = tmp_path / "phone"
    shard(folder / "backup.tar")
    (folder / "IMG_k9.MOV").touch()
    for number in range(8):
        (folder / f"IMG_{number}.jpg").write_bytes(image(number))
    said = f"{folder}: images (8) are read; left out: .tar files (1), videos (1)"
    for change in (lambda: None, reversed_folders):
        change()
        told, keys = read(folder, capfd)
        assert told.startswith("8 images, ")
        assert keys["DATA_SOURCES"] == ["disk_folder"]
    assert caplog.messages == [said, said]


def test_the_logo_of_a_hub_is_no_set_of_images(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("datasets")
    table(tmp_path / "data" / "train-00000-of-00001.parquet")
    (tmp_path / "logo.png").write_bytes(image(0))
    assert read(tmp_path, capfd)[0].startswith("8 images, ")
    assert f"{tmp_path}: .parquet files (1) are read; left out: images (1)" in caplog.messages


def test_without_images_it_is_what_most_files_are(tmp_path: Path) -> None:
    for name in ("a.mp4", "b/c.MP4", "d.tar", ".e.tar", ".f.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert source_of(tmp_path) == "video"
    (tmp_path / "g.tar").touch()
    assert source_of(tmp_path) == "webdataset"


def test_parquet_files_of_a_configuration(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("datasets")
    table(tmp_path / "plain_text" / "train-00000-of-00001.parquet")
    table(tmp_path / "plain_text" / "test-00000-of-00001.parquet", 3)
    assert read(tmp_path, capfd)[0].startswith("8 images, ")
    table(tmp_path / "other" / "train-00000-of-00001.parquet")
    said = refused(tmp_path, capfd, 1)
    assert f"{tmp_path} has several configurations: other, plain_text. Give the folder" in said


def test_shards_in_the_folder_of_a_split(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, count in {"train/s-000": 8, "train/s-001": 4, "validation/s-000": 2}.items():
        shard(tmp_path / f"{name}.tar", count)
    assert read(tmp_path, capfd)[0].startswith("12 images, ")


@pytest.mark.slow
def test_arrays_of_one_image_each_keep_their_values(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "bands"
    folder.mkdir()
    for number in range(8):
        draw = np.random.default_rng(number).integers(0, 4000, (40, 48, 5))
        np.save(folder / f"{number}.npy", draw.astype(np.uint16))
    told, keys = read(folder, capfd)
    assert told.startswith("8 images, ")
    assert re.search(r"\n5 bands of whole numbers, \d+ to 39\d\d: all values are kept", told)
    assert keys["IMAGE_MODE"] == "stored"
    assert main(["train", str(folder), *TRAIN, f"--out={tmp_path / 'run'}"]) == 0
    rows = tmp_path / "rows.npy"
    assert main(["embed", str(tmp_path / "run"), str(folder), f"--out={rows}"]) == 0
    assert len(np.load(rows)) == 8
    capfd.readouterr()
    main(["doctor", str(folder)])
    assert "not read" not in capfd.readouterr().out
    # Images of both kinds, where that is asked for.
    (folder / "8.png").write_bytes(image(8))
    assert read(folder, capfd)[0].startswith("1 images, ")
    stored = "--set=config.DATA.TRAIN.IMAGE_MODE=stored"
    assert read(folder, capfd, stored)[0].startswith("9 images, ")


def test_endings_in_capitals(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("GX01.MP4", "A.CSV", "A.NPZ", "A.TAR"):
        (tmp_path / name).touch()
    kinds = [source_of(tmp_path / name) for name in ("GX01.MP4", "A.CSV", "A.NPZ", "A.TAR")]
    assert kinds == ["video", "csv_filelist", "array_file", "webdataset"]
    with (tmp_path / "UP.NPY").open("wb") as file:
        np.save(file, np.zeros((9, 8, 8, 3), np.uint8))
    shard(tmp_path / "shards" / "S-0.TAR")
    (tmp_path / "list.TSV").write_text("number\tpath\n" + "1\tshards/0.png\n" * 7)
    for name, count in (("UP.NPY", 9), ("shards", 8), ("shards/S-{0..0}.TAR", 8), ("list.TSV", 7)):
        told = read(tmp_path / name, capfd)[0]
        assert told.startswith(f"{count} images, "), name


def test_compressed_shards_are_refused_with_the_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.tar.gz").write_bytes(b"\x1f\x8b")
    for name in ("s.tar.gz", "s-{0..1}.tar.gz"):
        said = refused(tmp_path / name, capfd, 2)
        assert "which compression prevents: unpack it. Expected .tar, a folder" in said
    said = refused(tmp_path, capfd, 1)
    assert "no image in it or in the folders below it. It has 1 compressed shards" in said


# ---- A folder with `train` and `val` in it, as many sets are laid out, through the verbs.


TRAIN_SHOWN = ["--method=simclr", "--model=resnet10t", *SMALL, "--batch-size=4", "--show"]


def folders(root: Path, **counts: int) -> Path:
    for name, each in counts.items():
        write_photos(root / name, each)
    return root


def said_of_training(root: Path, capfd: pytest.CaptureFixture[str]) -> str:
    capfd.readouterr()
    status = main(["train", str(root), *TRAIN_SHOWN])
    found = capfd.readouterr()
    assert (status == 0) == ("DATA_PATHS" in found.out)
    return found.out + " ".join(found.err.split())


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (("train", "val"), "train"),
        (("Training", "testing"), "Training"),
        (("train2017", "val2017"), "train2017"),
        (("train",), "train"),
        (("val", "test"), ""),
        (("train", "bus", "test"), ""),  # a class of that name
    ],
)
def test_train_reads_its_split(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], names: tuple[str, ...], read: str
) -> None:
    root = folders(tmp_path / "set", **dict.fromkeys(names, 5))
    (root / "annotations").mkdir()
    (root / "annotations" / "all.json").write_text("{}")
    said = said_of_training(root, capfd)
    assert f"DATA_PATHS=[{root / read}]" in said
    assert f"{10 if read else 10 * len(names)} images" in said
    told = f"are splits of a set; {read} is read"
    assert (told in said) == bool(read and len(names) > 1)


def test_a_folder_of_arrays_and_of_videos(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("av")
    for split in ("train", "val"):
        for name in "ab":
            arrays, videos = (tmp_path / kind / split / name for kind in ("arrays", "videos"))
            arrays.mkdir(parents=True)
            videos.mkdir(parents=True)
            for number in range(2):
                np.save(arrays / f"{number}.npy", np.full((40, 40), number, np.float32))
                write_video(videos / f"{number}.mp4", noise(4), "mpeg4")
    for kind in ("arrays", "videos"):
        assert f"DATA_PATHS=[{tmp_path / kind / 'train'}]" in said_of_training(
            tmp_path / kind, capfd
        )


def test_two_of_a_split_are_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = folders(tmp_path, train2014=4, train2017=4, val2017=4)
    said = said_of_training(root, capfd)
    assert "it holds splits of a set: train2014, train2017, val2017. Expected one for TRAIN" in said
    assert "Expected one for TRAIN (train, training); there are 2" in said


def test_judge_takes_both_of_one_folder_and_embed_all(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = folders(tmp_path / "set", train=6, val=4)
    train(make_run(tmp_path / "run", **changes(root / "train", DATA__TRAIN__DATA_LIMIT=12,
                                               MODEL__HEAD__PARAMS=[["mlp", {"dims": [32, 2]}]])))  # fmt: skip
    scores = []
    for of_train, of_val in ((root / "train", root / "val"), (root, root)):
        judged = ["judge", str(tmp_path / "run"), "--train", str(of_train), "--val", str(of_val)]
        assert main([*judged, "--trust-config"]) == 0
        report = json.loads((tmp_path / "run" / "evaluation.json").read_text())
        assert report["classes"] == ["dark", "light"]
        scores.append((report["scores"], report["images"]["TEST"]["images"]))
    assert scores[0] == scores[1]
    assert scores[0][1] == 8
    assert len(embed(tmp_path / "run", root, trust_config=True).features) == 20
    shutil.rmtree(root / "val")
    capfd.readouterr()
    assert main(["judge", str(tmp_path / "run"), "--train", str(root), "--val", str(root)]) == 1
    said = " ".join(capfd.readouterr().err.split())
    assert "it holds splits of a set: train. Expected one for TEST (val, valid" in said
    assert "there is none" in said
