"""The benchmark gives both contestants the same files, views and batch."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
from PIL import Image

from sslengine.config.resolve import resolve
from tools.perf_measurement import bench_end_to_end as bench


@pytest.mark.parametrize(
    ("name", "installed"), [("fashion48", False), ("fashion48", True), ("jpeg224", False)]
)
def test_the_engine_gets_the_files_and_views_of_the_case(
    name: str, installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Fashion-MNIST where Debian's package is installed, of generated images elsewhere."""
    fashion = tmp_path / "train-images-idx3-ubyte.gz"
    if installed:
        fashion.write_bytes(gzip.compress(bytes(16) + bytes([7]) * 3 * 28 * 28))
    monkeypatch.setattr(bench, "FASHION", fashion)
    case = bench.CASES[name]
    bench.write_files(case, 3, tmp_path)
    files = sorted((tmp_path / "images").iterdir())
    assert len(files) == 3
    for file in files:
        with Image.open(file) as image:
            assert image.mode == "RGB"
            assert (image.getextrema() == ((7, 7),) * 3) == installed
    given = bench.parsed(["--case", name, "--workers", "1", "--precision", "bf16"])
    words = [word for word in bench.config_of(case, tmp_path, given) if "EXTRA" not in word]
    config = resolve(words).config
    train = config.DATA.TRAIN
    assert list(train.DATA_PATHS) == [str(tmp_path)]
    transforms = {entry["name"]: entry for entry in train.TRANSFORMS}
    assert transforms["RandomResizedCrop"]["size"] == case.side
    assert ("ImgPilGaussianBlur" in transforms) == case.blur
    assert train.BATCHSIZE_PER_REPLICA == bench.BATCH
    assert config.LOSS.simclr_info_nce_loss.temperature == bench.TEMPERATURE
    assert config.MODEL.AMP_PARAMS.USE_AMP


@pytest.mark.slow
def test_the_engine_runs() -> None:
    words = ["--only", "sslengine", "--images", "256", "--epochs", "2", "--rounds", "1"]
    (rate,) = bench.main([*words, "--workers", "0"])["sslengine"]
    assert rate > 0


@pytest.mark.slow
def test_the_parts_of_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = bench.parsed(["--stages", "--images", "128"])
    bench.write_files(bench.CASES["fashion48"], 128, tmp_path)
    found = bench.stages(bench.CASES["fashion48"], tmp_path, tmp_path / "run", given)
    assert [*found] == ["input", "forward", "loss", "backward", "optimizer"]
    assert all(0 < each < math.inf for each in found.values())
    bench.show_stages({"input": 9.0, "forward": 1.0, "backward": 3.0}, threads=2)
    assert "model       4.000: at most 500 images/s" in capsys.readouterr().out
