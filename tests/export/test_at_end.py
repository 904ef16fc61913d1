"""The folder `weights` at the end of a run, through the real command."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file

from sslengine.export import at_end
from sslengine.launch.rank import run_rank
from tests.config.recipes import resolved
from tests.engines.runs import PowerCut
from tests.export.subjects import timm_vit


def _train(folder: Path, **changes: Any) -> None:
    run_rank(resolved(CHECKPOINT__DIR=str(folder), **changes), join=False)


def _trunk(folder: Path) -> dict[str, torch.Tensor]:
    state = torch.load(folder / "checkpoints" / "checkpoint.torch", weights_only=True)
    trunk: dict[str, torch.Tensor] = state["classy_state_dict"]["base_model"]["model"]["trunk"]
    return trunk


def _holds_the_newest(folder: Path) -> bool:
    found, trunk = load_file(folder / "weights" / "model.safetensors"), _trunk(folder)
    return all(torch.equal(found[name], each) for name, each in trunk.items())


VIT = {
    "MODEL__TRUNK": timm_vit(img_size=8, patch_size=4),
    "MODEL__HEAD__PARAMS": [["mlp", {"dims": ["auto", 8]}]],
}


def test_the_lines_that_a_run_prints_make_the_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _train(tmp_path / "run", **VIT)
    lines = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("  weights "))
    assert lines[start].endswith("for timm, transformers and lightly")
    found: dict[str, Any] = {}
    exec("\n".join(line.strip() for line in lines[start + 1 : start + 4]), found)
    assert isinstance(found["model"], timm.models.VisionTransformer)
    assert _holds_the_newest(tmp_path / "run")
    told = json.loads((tmp_path / "run" / "weights" / "manifest.json").read_text())["proof"]
    assert told == [{"not_proved": at_end._WHY}]


def test_images_that_are_not_resized_have_their_own_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the run was trained: this network takes no others."""
    as_they_are = [{"name": "ImgReplicatePil", "num_times": 2}, {"name": "ToTensor"}]
    trunk = timm_vit(img_size=12, patch_size=4)
    _train(tmp_path / "run", **VIT | {"MODEL__TRUNK": trunk}, DATA__TRAIN__TRANSFORMS=as_they_are)
    assert "for timm, transformers and lightly" in capsys.readouterr().out
    told = json.loads((tmp_path / "run" / "weights" / "config.json").read_text())
    assert told["pretrained_cfg"]["input_size"] == [3, 12, 12]


def test_tensors_alone_say_what_timm_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not what torchvision lacks, which is tried after it."""
    network = {
        "IMAGE_SIZE": 8, "PATCH_SIZE": 4, "STEM": "conv", "NUM_LAYERS": 1, "NUM_HEADS": 1,
        "HIDDEN_DIM": 12, "MLP_DIM": 12,
    }  # fmt: skip
    trunk = {"NAME": "vision_transformer", "VISION_TRANSFORMERS": network}
    _train(tmp_path / "run", **VIT | {"MODEL__TRUNK": trunk})
    assert (
        "tensors alone: timm has no network like this trunk with config.MODEL.TRUNK"
        in capsys.readouterr().out
    )


def test_a_run_that_goes_on_replaces_its_weights_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    _train(folder)
    before = (folder / "weights" / "manifest.json").read_bytes()
    _train(folder)  # complete: nothing to do
    assert (folder / "weights" / "manifest.json").read_bytes() == before
    _train(folder, OPTIMIZER__num_epochs=3)
    assert _holds_the_newest(folder)
    (folder / "weights" / "notes.txt").write_text("mine")
    kept = (folder / "weights" / "model.safetensors").read_bytes()
    _train(folder, OPTIMIZER__num_epochs=4)
    assert "weights was not written: " in capsys.readouterr().err
    assert (folder / "weights" / "notes.txt").read_text() == "mine"
    assert (folder / "weights" / "model.safetensors").read_bytes() == kept


def test_a_run_that_was_killed_before_its_weights_were_there_writes_them(tmp_path: Path) -> None:
    _train(tmp_path)
    shutil.rmtree(tmp_path / "weights")
    _train(tmp_path)  # complete
    assert _holds_the_newest(tmp_path)
    earlier = tmp_path / "earlier_weights"
    (tmp_path / "weights").rename(earlier)
    _train(tmp_path, OPTIMIZER__num_epochs=3)
    shutil.rmtree(tmp_path / "weights")
    earlier.rename(tmp_path / "weights")  # those of the shorter run are still there
    _train(tmp_path, OPTIMIZER__num_epochs=3)
    assert _holds_the_newest(tmp_path)


def test_weights_that_were_moved_to_another_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "disk" / "w"
    _train(folder)
    elsewhere.parent.mkdir()
    (folder / "weights").rename(elsewhere)
    (folder / "weights").symlink_to(elsewhere)
    _train(folder, OPTIMIZER__num_epochs=3)
    assert "not written" not in capsys.readouterr().err
    assert (folder / "weights").is_symlink()
    assert _holds_the_newest(folder)
    assert [each.name for each in elsewhere.parent.iterdir()] == ["w"]


def test_an_export_that_fails_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*given: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(at_end, "write", fail)
    _train(tmp_path / "run")
    place = tmp_path / "run" / "weights"
    said = f"WARNING: {place} was not written: No space left on device\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "run" / "weights").exists()


@pytest.mark.parametrize("fails", ["write_manifest", "os.replace"])
def test_an_export_that_fails_keeps_the_earlier_one(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _train(tmp_path / "run")
    place, replace = tmp_path / "run" / "weights", os.replace
    before = {each.name: each.read_bytes() for each in place.iterdir()}

    def fail(source: Any, target: Any) -> None:
        if fails == "write_manifest" or (target == place and Path(source).suffix == ".tmp"):
            raise OSError("No space left on device")
        replace(source, target)

    monkeypatch.setattr(f"sslengine.export.folder.{fails}", fail)
    _train(tmp_path / "run", OPTIMIZER__num_epochs=3)
    assert f"{place} was not written: No space left on device\n" in capsys.readouterr().err
    assert {each.name: each.read_bytes() for each in place.iterdir()} == before
    assert not list((tmp_path / "run").glob(".weights*"))


def test_no_weights_of_a_run_that_asks_for_none_or_is_cut(tmp_path: Path) -> None:
    _train(tmp_path / "off", CHECKPOINT__EXPORT_AT_END=False)
    assert not (tmp_path / "off" / "weights").exists()
    cut = [{"name": "test_power_cut", "after": 6}]
    with pytest.raises(PowerCut):
        _train(tmp_path / "cut", HOOKS__EXTRA=cut)
    assert (tmp_path / "cut" / "checkpoints").exists()
    assert not (tmp_path / "cut" / "weights").exists()
