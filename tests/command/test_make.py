"""`sslengine make`: lists of files, permutations, a whole checkpoint of shards."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from extra_scripts import make_file_lists
from sslengine.checkpoint.files import POINTER
from sslengine.command import make
from sslengine.data.augment.jigsaw import ShuffleImgPatches, distinct_permutations
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import SplitOptions
from sslengine.errors import SSLEngineError
from sslengine.models.options import ModelOptions, WeightsInitOptions
from sslengine.models.weights.load import init_from_file
from tests.engine.runs import make_task
from tests.engine.sharded import SHARDED, SMALL_VIT, assert_close, needs_shards
from tests.integration.test_sharded_resume import ADAM, start
from tests.ranks import RankPool


def main(arguments: list[str]) -> int:
    return make.main(["file-lists", *arguments])


def _images(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (len(name), 0, 0)).save(folder / name)


def test_splits_with_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = tmp_path / "birds", tmp_path / "lists"
    _images(data, "train/wren/1.png", "train/crow/2.png", "train/wren/3.png", "val/wren/4.png",
            "val/crow/5.png")  # fmt: skip
    main([str(data), str(out)])
    told = capsys.readouterr().out
    assert "train: 3 images, 2 classes" in told
    assert "DATASET_NAMES=[birds]" in told
    assert (out / "classes.txt").read_text() == "crow\nwren\n"
    labels = np.load(out / "train_labels.npy").tolist()
    names = [Path(path).parent.name for path in np.load(out / "train_images.npy")]
    assert [["crow", "wren"][label] for label in labels] == names == ["crow", "wren", "wren"]
    monkeypatch.setenv("SSLENGINE_DATASET_CATALOG", str(out / "dataset_catalog.json"))
    options = SplitOptions(
        DATA_SOURCES=["disk_filelist"], LABEL_SOURCES=["disk_filelist"], DATASET_NAMES=["birds"]
    )
    for split, count in (("TRAIN", 3), ("TEST", 2)):
        assert len(SSLDataset(options, split, seed=0)) == count


def test_a_class_whose_name_is_not_utf8(tmp_path: Path) -> None:
    _images(tmp_path / "birds", "wren/1.png")
    os.rename(tmp_path / "birds" / "wren", os.fsencode(tmp_path) + b"/birds/caf\xe9")
    main([str(tmp_path / "birds"), str(tmp_path / "lists")])
    assert (tmp_path / "lists" / "classes.txt").read_bytes() == b"caf\xe9\n"
    (path,) = np.load(tmp_path / "lists" / "train_images.npy")
    assert os.path.isfile(path)


def test_a_flat_folder_has_no_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _images(tmp_path / "mine", "a.png", "b.png")
    main([str(tmp_path / "mine"), str(tmp_path / "lists"), "--name=photos"])
    assert "train: 2 images, no labels" in capsys.readouterr().out
    catalogue = json.loads((tmp_path / "lists" / "dataset_catalog.json").read_text())
    assert catalogue == {"photos": {"train": [str(tmp_path / "lists" / "train_images.npy")]}}
    assert not (tmp_path / "lists" / "train_labels.npy").exists()


def test_what_is_wrong_is_told_and_nothing_written(tmp_path: Path) -> None:
    data, out = tmp_path / "birds", tmp_path / "lists"
    with pytest.raises(SSLEngineError, match="is not there"):
        main([str(data), str(out)])
    assert make_file_lists.main([str(data), str(out)]) == 2  # by its earlier name
    _images(data, "train/wren/1.png", "val/crow/2.png")
    with pytest.raises(
        SSLEngineError, match=r"val and train differ in their classes: .*crow.*wren"
    ):
        main([str(data), str(out)])
    assert not out.exists()


# ---- make permutations


def make_permutations(arguments: list[str]) -> int:
    return make.main(["permutations", *arguments])


def test_it_writes_what_the_transform_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "p.npy"
    make_permutations(["--count", "10", "--patches", "4", str(file)])
    read = ShuffleImgPatches(str(file)).permutations
    assert read.tolist() == distinct_permutations(10, 4).tolist()
    told = capsys.readouterr().out
    assert f"{file}: 10 permutations of 4 patches. Two differ in" in told


# ---- whole checkpoint


RUN = {**SMALL_VIT, **ADAM, "DATA__TRAIN__DATA_LIMIT": 24}


def make_whole_checkpoint(arguments: list[str]) -> int:
    return make.main(["whole-checkpoint", *arguments])


@pytest.fixture(scope="module")
def cut(two_ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cut")
    two_ranks.run(start, folder, {**RUN, **SHARDED}, 2)
    return folder / "checkpoints"


@pytest.mark.slow
@needs_shards
def test_a_run_goes_on_from_the_joined_file(cut: Path, tmp_path: Path) -> None:
    """In the place of the shards: it is what a plain run would have left."""
    checkpoints = tmp_path / "run" / "checkpoints"
    make_whole_checkpoint(
        [str(cut / POINTER), "--out", str(checkpoints / "model_iteration2.torch")]
    )
    manifest = (cut / "model_iteration2.shards.json").read_text()
    assert "model_iteration2.shards" in manifest
    state = torch.load(checkpoints / "model_iteration2.torch", weights_only=True)
    assert state["classy_state_dict"]["optimizer"]["state"]
    plain = start(tmp_path / "plain", RUN)
    task = make_task(tmp_path / "again", [], **RUN, DATA__TRAIN__BATCHSIZE_PER_REPLICA=8)
    task.set_classy_state(state["classy_state_dict"])
    assert task.iteration == 2
    shutil.copytree(cut, tmp_path / "shards" / "checkpoints", symlinks=True)
    rest = start(tmp_path / "shards", RUN)
    assert_close(rest, plain._replace(losses=plain.losses[2:]), rtol=1e-4, atol=1e-6)


@needs_shards
def test_weights_to_start_from(cut: Path, tmp_path: Path) -> None:
    """Out of the folder and out of the file, by WEIGHTS_INIT: as the engines read them."""
    make_whole_checkpoint(
        [str(cut / POINTER), "--out", str(tmp_path / "w.torch"), "--weights-only"]
    )
    state = torch.load(tmp_path / "w.torch", weights_only=True)["classy_state_dict"]
    assert "optimizer" not in state
    for file in (tmp_path / "w.torch", cut / POINTER, cut / "model_iteration2.shards"):
        model = make_task(tmp_path, [], **RUN).base_model
        options = ModelOptions(WEIGHTS_INIT=WeightsInitOptions(PARAMS_FILE=str(file)))
        assert init_from_file(model, options).trunk > 20
        for name, value in state["base_model"]["model"]["trunk"].items():
            assert torch.equal(model.trunk.state_dict()[name], value)
