"""`sslengine predict` of several images, of which some are wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sslengine.command.front import main
from tests.data.deep_files import numbers, tiff

FAILED, TYPED = 1, 2
COMPUTING = ": {} images in "


@pytest.fixture
def photos(classifier: Path) -> list[Path]:
    """Those of the run in `run` beside them."""
    return sorted((classifier / "images").rglob("*.png"))


@pytest.mark.parametrize(
    ("wrong", "status", "why"),
    [
        ("cut.png", FAILED, "cut.png cannot be read as an image: image file is truncated"),
        ("gone.png", TYPED, "gone.png cannot be read as an image: No such file"),
        ("deep.tif", FAILED, "deep.tif cannot be read as an image: "),
    ],
)
def test_the_other_images_have_their_results(
    wrong: str,
    status: int,
    why: str,
    photos: list[Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run, first, last = str(photos[0].parents[2] / "run"), str(photos[0]), str(photos[-1])
    (tmp_path / "cut.png").write_bytes(photos[1].read_bytes()[:400])
    (tmp_path / "deep.tif").write_bytes(
        tiff(numbers((12, 12, 4), np.uint16), planarconfig="contig")
    )
    bad = str(tmp_path / wrong)

    assert main(["predict", run, first, last, "--nearest=1", "--json"]) == 0
    right = json.loads(capfd.readouterr().out)
    assert right.pop("unreadable") == []

    sheet = tmp_path / "sheet.png"
    assert main(["predict", run, bad, first, last, "--nearest=1", f"--picture={sheet}"]) == status
    out, err = capfd.readouterr()
    assert [each for each in out.splitlines() if each in (bad, first, last)] == [first, last]
    assert why in err
    with Image.open(sheet) as picture:
        assert picture.height < 3 * 160  # two rows

    assert main(["predict", run, first, bad, last, "--nearest=1", "--json"]) == status
    out, err = capfd.readouterr()
    assert json.loads(out) == {**right, "unreadable": [bad]}
    assert why in err

    # Of none that can be read stdout has nothing.
    assert main(["predict", run, bad, bad, "--json"]) == status
    out, err = capfd.readouterr()
    assert out == ""
    assert why in err


@pytest.mark.usefixtures("progress_at_once")
def test_it_says_that_it_computes_the_training_images_once(
    photos: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(photos[0].parents[2] / "run", run)
    shutil.rmtree(run / "features", ignore_errors=True)
    command = ["predict", str(run), str(photos[0]), "--json"]
    assert main(command) == 0
    out, err = capfd.readouterr()
    assert COMPUTING.format(len(photos)) in err
    json.loads(out)
    assert main(command) == 0
    assert COMPUTING.format(len(photos)) not in capfd.readouterr().err
