"""The benchmark compares like with like: the list and the engine make the same views."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
SHAPES = {"simclr": [224, 224], "multicrop": [224, 224, *[96] * 6], "pirl": [224, *[64] * 9]}


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = ROOT / "tools" / "perf_measurement" / "bench_data.py"
    spec = importlib.util.spec_from_file_location("bench_data", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_data"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def images(bench: ModuleType) -> list[bytes]:
    return bench.make_images(40)  # type: ignore[no-any-return]


def test_images_are_of_the_size_that_is_told(images: list[bytes]) -> None:
    assert 70_000 < sum(map(len, images)) / len(images) < 88_000
    sizes = [Image.open(io.BytesIO(encoded)).size for encoded in images]
    assert sizes.count((375, 500)) == 10
    assert sizes.count((500, 375)) == 30


@pytest.mark.parametrize("case", SHAPES)
def test_everyone_makes_the_views_of_the_case(
    bench: ModuleType, images: list[bytes], case: str
) -> None:
    known = bench.contestants(case)
    bench._seed(1)
    expected = known["list"](case)(images[0])
    for name, build in known.items():
        bench._seed(1)
        views = build(case)(images[0])
        if name.startswith("decode"):
            continue
        assert [view.shape[-1] for view in views] == SHAPES[case]
        if name == "engine, pil":
            for view, other in zip(views, expected, strict=True):
                mean = torch.tensor(bench.MEAN).view(3, 1, 1)
                std = torch.tensor(bench.STD).view(3, 1, 1)
                torch.testing.assert_close(view / 255.0, other * std + mean)


def test_a_run_writes_its_times(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = tmp_path / "times.json"
    options = ["--case", "simclr", "--only", "engine, pil", "--images", "4", "--rounds", "2"]
    results = bench.main([*options, "--no-wall", "--json", str(into)])
    assert json.loads(into.read_text()) == results
    assert results["simclr"]["ratio"]["list"] == 1.0
    assert {len(times) for times in results["simclr"]["cpu"].values()} == {2}
    assert "engine, pil" in capsys.readouterr().out
    with pytest.raises(SystemExit):  # before anything is measured
        bench.main([*options, "--json", str(into)])
    assert f"{into}: it is there already" in capsys.readouterr().err
