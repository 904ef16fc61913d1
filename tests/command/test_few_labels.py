"""DATA_LIMIT_SAMPLING through the command: what a run used of its images, and lists of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sslengine.command.front import main
from tests.command.photos import SMALL, write_photos

TYPED = 2
SAMPLING = "DATA.TRAIN.DATA_LIMIT_SAMPLING"
RUN = ["--method=simclr", "--model=resnet10t", *SMALL]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_list_that_is_not_there(
    ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is begun."""
    photos, out = write_photos(tmp_path / "photos", each=4), tmp_path / "run"
    (tmp_path / "names.txt").write_text("0.png\n")
    more = [
        f"--set={SAMPLING}.LIST={tmp_path}/nams.txt",
        f"--set=DISTRIBUTED.NUM_PROC_PER_NODE={ranks}",
        f"--out={out}",
    ]
    assert main(["train", str(photos), *RUN, *more]) == TYPED
    told = capsys.readouterr().err
    assert f"error: config.{SAMPLING}.LIST: there is no file {tmp_path}/nams.txt" in told
    assert "Did you mean 'names.txt'?" in told
    assert not out.exists()


@pytest.mark.slow
def test_other_images_are_used_as_a_whole(tmp_path: Path) -> None:
    """By embed and judge: what a run was trained on is no choice among them."""
    photos, run = write_photos(tmp_path / "photos"), tmp_path / "run"
    assert main(["train", str(photos), *RUN, f"--set={SAMPLING}.SHARE=0.5", f"--out={run}"]) == 0
    rows = tmp_path / "rows.npz"
    assert main(["embed", str(run), str(photos), "--workers=0", f"--out={rows}"]) == 0
    with np.load(rows) as held:
        assert sorted(held["paths"]) == sorted(map(str, photos.rglob("*.png")))
    data = [f"--train={photos}", f"--val={photos}", "--set=EVALUATE.LABEL_FREE=[rankme]"]
    assert main(["judge", str(run), *data]) == 0
    (images, *_) = (each["about"]["images"] for each in
                    json.loads((run / "evaluation.json").read_text())["scores"])  # fmt: skip
    assert images == {"train": 16, "test": 16}
    # Unless --set says it.
    few = [f"--set={SAMPLING}.SHARE=0.25", "--workers=0", f"--out={tmp_path}/few.npy"]
    assert main(["embed", str(run), str(photos), *few]) == 0
    assert np.load(tmp_path / "few.npy").shape[0] == 4
