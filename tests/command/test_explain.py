from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from sslengine.command.explain import main
from sslengine.command.explained_views import GAP, LINE
from sslengine.command.front import run
from tests.config.recipes import recipe
from tests.data.augment.lists import COLOUR, CROP, FLIP, TENSOR, TWO, own
from tests.data.pictures import write_tree


def config(folder: Path, transforms: list[dict[str, Any]], **data: Any) -> list[str]:
    """The arguments that name it."""
    train = {"TRANSFORMS": transforms, "COLLATE_FUNCTION": "multicrop_collator", **data}
    tree = recipe(**{f"DATA__TRAIN__{key}": value for key, value in train.items()})
    (folder / "mine.yaml").write_text("# @package _global_\n" + yaml.safe_dump({"config": tree}))
    return ["config=mine", f"--config-dir={folder}", "--count=3"]


def test_what_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [TWO, CROP, own("Posterize"), COLOUR, FLIP, *TENSOR]
    arguments = config(tmp_path, entries)
    assert main([*arguments, "config.DATA.AUGMENT_BACKEND=pil"]) == 0
    told = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in told.splitlines()]
    what = [row[1:3] for row in rows if len(row) == 4]
    known, later = "known, on images of any kind", "after collate, on the device"
    why = "its class does not say `takes_arrays`"
    assert what == [
        ["", "read and decoded"],
        ["ImgReplicatePil", known],
        ["RandomResizedCrop", known],
        ["tests.data.augment.lists:Posterize", f"falls back to PIL: {why}"],
        ["ImgPilColorDistortion", known],
        ["RandomHorizontalFlip", known],
        ["ToTensor", later],
        ["Normalize", later],
    ]
    times = [row[3] for row in rows if len(row) == 4]
    assert all(float(time) >= 0 for time in times[:-1])
    assert times[-1] == ""
    assert "as a whole with the back-end pil: " in told
    assert "images leave the workers as uint8" in told
    assert "generated JPEGs" not in told


def test_floats_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = config(tmp_path, [TWO, CROP, *TENSOR, own("Noise")])
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert "TRANSFORMS.4 (tests.data.augment.lists:Noise) follows ToTensor" in told


def test_data_that_is_not_there_is_generated_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = config(tmp_path, [TWO, CROP, *TENSOR], DATA_SOURCES=["disk_folder"])
    assert main(arguments) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "images: generated JPEGs of 500 x 375, for the config's cannot be read: config.DATA" in told
    )


def test_the_picture_shows_what_was_read_and_its_views(tmp_path: Path) -> None:
    """Without chance, both can be told from the files; normalised values are taken back."""
    write_tree(tmp_path / "images", "a/0.png", "b/1.png")
    large = {"name": "Resize", "size": [112, 112], "interpolation": 0}
    arguments = config(
        tmp_path,
        [TWO, large, *TENSOR],
        DATA_SOURCES=["disk_folder"],
        DATA_PATHS=[str(tmp_path / "images")],
        DATA_LIMIT=-1,
    )
    picture = tmp_path / "views.png"
    assert main([*arguments, f"--picture={picture}", "--images=2", "--views=3"]) == 0
    with Image.open(picture) as opened:
        sheet = np.asarray(opened)
    assert sheet.shape == (GAP + LINE + 2 * (112 + GAP), GAP + 4 * (112 + GAP), 3)
    for row, name in enumerate(("a/0.png", "b/1.png")):
        with Image.open(tmp_path / "images" / name) as opened:
            expected = np.asarray(opened.resize((112, 112), Image.Resampling.NEAREST))
        top = GAP + LINE + row * (112 + GAP)
        for column in (1, 2, 3):
            left = GAP + column * (112 + GAP)
            assert (sheet[top : top + 112, left : left + 112] == expected).all()


def test_patches_that_are_tensors_are_shown(tmp_path: Path) -> None:
    entries = [
        TWO,
        {"name": "Resize", "size": [40, 40]},
        *TENSOR,
        {"name": "ImgPatchesFromTensor", "num_patches": 4, "patch_jitter": 4},
    ]
    arguments = config(tmp_path, entries, COLLATE_FUNCTION="siamese_collator")
    picture = tmp_path / "views.png"
    assert main([*arguments, f"--picture={picture}", "--images=1"]) == 0
    with Image.open(picture) as opened:
        assert opened.height == GAP + LINE + 16 * 6 + GAP


def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = config(tmp_path, [TWO, CROP, *TENSOR])
    assert run("explain", [*arguments, "--split=TEST"]) == 2
    assert capsys.readouterr().err == (
        "error: config.DATA.TEST.TRANSFORMS is empty: there is nothing to explain.\n"
    )
    assert run("explain", [*arguments, f"--picture={tmp_path / 'views.xyz'}"]) == 2
    assert "the picture cannot be written" in capsys.readouterr().err
    assert run("explain", [*arguments, "--count=0"]) == 2
    assert capsys.readouterr().err == "error: --count: expected 1 or more, got 0.\n"


def test_images_that_cannot_be_read_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(tmp_path / "images", *(f"{number}.png" for number in range(4)))
    (tmp_path / "images" / "1.png").write_text("not an image")
    paths = [str(tmp_path / "images")]
    data = {"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": paths, "DATA_LIMIT": -1}
    arguments = config(tmp_path, [TWO, CROP, *TENSOR], **data)
    assert main([*arguments, f"--picture={tmp_path / 'views.png'}"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "images: 1 that cannot be read are left out, the first is" in told
    assert "1.png (UnidentifiedImageError" in told
