"""A folder with `train` and `val` in it, as many sets are laid out, through the verbs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from sslengine.command.embed import embed
from sslengine.command.front import main
from sslengine.engines.train import train
from tests.command.photos import SMALL, write_photos
from tests.data.sources.videos import noise, write_video
from tests.engines.runs import make_run
from tests.predictor.runs import changes

TRAIN = ["--method=simclr", "--model=resnet10t", *SMALL, "--batch-size=4", "--show"]


def folders(root: Path, **counts: int) -> Path:
    for name, each in counts.items():
        write_photos(root / name, each)
    return root


def said_of_training(root: Path, capfd: pytest.CaptureFixture[str]) -> str:
    capfd.readouterr()
    status = main(["train", str(root), *TRAIN])
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
