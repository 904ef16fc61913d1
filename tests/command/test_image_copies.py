from __future__ import annotations

import json
import os
import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sslengine.command import front, make
from sslengine.command import image_copies as module
from sslengine.command.image_copies import Copies, write_part
from sslengine.command.image_copies import make as make_cache
from sslengine.data.options import SplitOptions
from sslengine.data.sources.disk import FolderSource
from sslengine.data.sources.image_cache import ImageCacheSource
from sslengine.errors import ConfigError, DataError, OutputError, SSLEngineError
from tests.data.pictures import picture, write_picture


def main(arguments: list[str]) -> int:
    return make.main(["image-cache", *arguments])


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderSource:
    """Five images, in parts of two; one is small, one cannot be read."""
    monkeypatch.setattr(module, "IN_A_PART", 2)
    for number, side in enumerate((40, 40, 8, 40, 40)):
        write_picture(tmp_path / "data" / "ab"[number % 2] / f"{number}.png", number, side)
    (tmp_path / "data" / "b" / "3.png").write_bytes(b"no image")
    return FolderSource(SplitOptions(DATA_PATHS=[str(tmp_path / "data")]), "TRAIN")


def cached(out: Path) -> ImageCacheSource:
    return ImageCacheSource(SplitOptions(DATA_PATHS=[str(out)]), "TRAIN")


@pytest.fixture
def no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pool:
        map = staticmethod(map)

        def __init__(self, *_: object) -> None: ...

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(module, "ProcessPoolExecutor", Pool)


@pytest.mark.parametrize("quality", [0, 80])
@pytest.mark.usefixtures("no_pool")
def test_copies_are_those_of_pillow(source: FolderSource, tmp_path: Path, quality: int) -> None:
    told = make_cache(source, tmp_path / "out", Copies(20, quality), "birds", workers=1)
    assert (told["unreadable"], told["not_resized"]) == (1, 1)
    copies = cached(tmp_path / "out")
    assert copies.labels().tolist() == source.labels().tolist() == [0, 0, 0, 1, 1]
    assert copies.class_names == source.class_names == ["a", "b"]  # TEST is numbered by them
    for index, number in enumerate((0, 2, 4, 1)):  # by class
        image = picture(number, 8 if number == 2 else 40)
        expected = image if number == 2 else image.resize((20, 20), Image.Resampling.BICUBIC)
        if quality:
            file = BytesIO()
            expected.save(file, "JPEG", quality=quality)
            expected = Image.open(file)
        assert copies.image(index).tobytes() == expected.tobytes()
    with pytest.raises(OSError, match="the file is empty"):
        copies.image(4)


def test_shapes_are_kept() -> None:
    sizes = [(100, 50), (50, 100), (1000, 21), (20, 20), (5, 900)]
    encoded = [Copies(20, 0).encode(Image.new("RGB", size)) for size in sizes]
    found = [Image.open(BytesIO(each)).size for each in encoded]
    assert found == [(40, 20), (20, 40), (952, 20), (20, 20), (5, 900)]


@pytest.mark.usefixtures("no_pool")
def test_interrupted_it_goes_on(
    source: FolderSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, copies = tmp_path / "out", Copies(20, 80)
    written = []

    def killed_in_the_second(source: FolderSource, out: Path, copies: Copies, number: int) -> None:
        written.append(number)
        if len(written) == 2:
            (out / "part-00001.bin").write_bytes(b"half of")
            raise KeyboardInterrupt
        write_part(source, out, copies, number)

    monkeypatch.setattr(module, "write_part", killed_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        make_cache(source, out, copies, "birds", workers=1)
    with pytest.raises(DataError, match=r"is not complete: run `sslengine make image-cache` again"):
        cached(out)
    with pytest.raises(OutputError, match=r"was begun with other settings: changes"):
        make_cache(source, out, Copies(30, 80), "birds", workers=1)
    make_cache(source, out, copies, "birds", workers=1)
    assert written == [0, 1, 1, 2]
    make_cache(source, tmp_path / "at once", copies, "birds", workers=1)
    for index in range(5):
        assert cached(out).encoded(index) == cached(tmp_path / "at once").encoded(index)
    with pytest.raises(OutputError, match=r"already has a complete cache"):
        make_cache(source, out, copies, "birds", workers=1)


@pytest.mark.usefixtures("no_pool")
def test_other_images_are_not_mixed_in(source: FolderSource, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "making.json").write_text(json.dumps({"version": 1}))
    with pytest.raises(OutputError, match=r"other settings: of, changes, images, .*names"):
        make_cache(source, out, Copies(20, 80), "birds", workers=1)
    with pytest.raises(OutputError, match=r"is not empty, and holds no cache"):
        make_cache(source, tmp_path / "data", Copies(20, 80), "birds", workers=1)
    assert sorted(os.listdir(tmp_path / "data")) == ["a", "b"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        write_picture(tmp_path / "data" / f"{number}.png", number, 40)
    main([str(tmp_path / "data"), str(tmp_path / "out"), "--side=16", "--workers=1"])
    told = capsys.readouterr().out
    assert told.startswith(
        f"3 images in {tmp_path / 'out'}: shorter side 16, JPEG of quality 90, TRANSPARENT w"
    )
    assert told.endswith(f"\nto use it: sslengine train {tmp_path / 'out'}\n")
    copies = cached(tmp_path / "out")
    assert np.asarray(copies.image(2)).shape == (16, 16, 3)
    with pytest.raises(DataError, match=r"the source that was cached has no labels"):
        copies.labels()


def test_images_of_npy_files_have_no_copies_of_8_bits(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "0.npy", np.zeros((9, 9, 6), np.uint16))
    with pytest.raises(ConfigError, match=r"copies of 8 bits, and images of \.npy have none"):
        main([str(tmp_path / "data"), str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "missing", "nearest"),
    [
        ("disk_folder", "photo", "photos"),
        ("disk_filelist", "list.npz", "list.npy"),
        ("array_file", "lists.npy", "list.npy"),
        ("webdataset", "train_{0..1}.tar", "train-0.tar"),
    ],
)
def test_what_is_not_there_is_named_before_anything_is_written(
    source: str, missing: str, nearest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("photos", "list.npy", "train-0.tar"):
        (tmp_path / name).touch()
    given = ["image-cache", source, f"{tmp_path}/{missing}", str(tmp_path / "out")]
    assert front.main(["make", *given]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {tmp_path}/{missing}: there is no ")
    assert f"{tmp_path} has no " in told
    assert f"Did you mean '{nearest}'" in told
    assert not (tmp_path / "out").exists()


def test_images_of_more_than_8_bits_need_a_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    levels = np.arange(64, dtype=np.uint16).reshape(8, 8) * 65  # 12 bits
    Image.fromarray(levels).save(tmp_path / "data" / "0.png")
    command = ["disk_folder", str(tmp_path / "data"), str(tmp_path / "out"), "--raw", "--workers=1"]
    with pytest.raises(
        SSLEngineError, match=r"0\.png: .*uint16, from 0 to 4095, .*PIXEL_RANGE .*: --pixel-range="
    ):
        main(command)
    with pytest.raises(SSLEngineError, match=r"PIXEL_RANGE: expected .*got 'twelve'"):
        main([*command, "--pixel-range=twelve"])
    with pytest.raises(SSLEngineError, match="was begun with other settings: changes"):
        main([*command, "--pixel-range=[0, 4095]"])
    shutil.rmtree(tmp_path / "out")
    main([*command, "--pixel-range=[0, 4095]"])
    assert (
        "plain pixels, PIXEL_RANGE [0, 4095], TRANSPARENT white; 1 were" in capsys.readouterr().out
    )
    expected = np.rint(levels * (255 / 4095)).astype(np.uint8)
    assert (np.asarray(cached(tmp_path / "out").image(0))[..., 0] == expected).all()
