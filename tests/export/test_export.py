"""`sslengine.export` on runs: what is written, proved, said and refused."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

import sslengine
from sslengine.checkpoint import files
from sslengine.engines.train import train
from sslengine.errors import CheckpointError, ExportError, OutputError, UnknownNameError
from sslengine.export import FORMATS
from sslengine.export import folder as export_folder
from sslengine.export.folder import usage
from sslengine.export.formats import Made, Proof, difference, prepare, prove
from sslengine.export.to_pt2 import trace_subject
from sslengine.predictor import Predictor
from tests.engines.runs import make_run
from tests.export.subjects import MEAN, STD, TEST_VIEW, subject, timm_vit
from tests.methods.test_byol import RECIPE as BYOL
from tests.predictor.runs import make_classifier


def _run(folder: Path, **changes: Any) -> Path:
    make_classifier(folder, DATA__TEST__TRANSFORMS=TEST_VIEW, **changes)
    return folder / "run"


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that trained a small vision transformer."""
    crop = [{"name": "RandomResizedCrop", "size": 32}, *TEST_VIEW[2:]]
    head = [["mlp", {"dims": ["auto", 3]}]]
    return _run(
        tmp_path_factory.mktemp("vit"), MODEL__TRUNK=timm_vit(), MODEL__HEAD__PARAMS=head,
        DATA__TRAIN__TRANSFORMS=crop,
    )  # fmt: skip


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of a run that trained a ResNet which no library has."""
    return _run(tmp_path_factory.mktemp("narrow"))


@pytest.fixture(autouse=True)
def _proof_in_a_new_process_takes_seconds(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tests have it."""
    if request.function not in (
        test_timm_gives_the_predictors_features_of_a_picture,
        test_a_program_of_torch_takes_any_number_of_images,
    ):
        monkeypatch.setattr(export_folder, "prove", lambda *given: [{"not_proved": "a test"}])


def _manifest(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_text())


def _picture() -> Image.Image:
    pixels = np.random.default_rng(1).integers(0, 256, (71, 53, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.slow
@torch.no_grad()
def test_timm_gives_the_predictors_features_of_a_picture(vit: Path, tmp_path: Path) -> None:
    """In this process; that the export did it in another is in the manifest."""
    (vit / "evaluation.json").write_text('{"knn": {"top_1": 33.3}}')
    out = sslengine.export(vit, tmp_path / "birds-vit", license="mit")
    assert sorted(each.name for each in out.iterdir()) == [
        "README.md", "config.json", "manifest.json", "model.safetensors",
    ]  # fmt: skip
    model = timm.create_model(f"local-dir:{out}", pretrained=True).eval()
    data: Any = timm.data
    transform = data.create_transform(**data.resolve_model_data_config(model))
    found = model(transform(_picture())[None])[0]
    expected = Predictor(vit, nearest=0)(_picture()).features
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    said = _manifest(out)
    first = said["proof"][0]
    assert (first["library"], first["version"]) == ("timm", timm.__version__)
    assert first["compared"] == "features of 16 pictures, through timm's transform"
    assert first["largest_difference"] <= 1e-5
    assert {key: said[key] for key in ("format", "trunk", "layer", "feature_dim", "method",
                                       "network", "license", "run", "started_from")} == {
        "format": "timm", "trunk": "vit_tiny_patch16_224", "layer": "flatten", "feature_dim": 32,
        "method": "cross_entropy_multiple_output_single_target", "network": "model",
        "license": "mit", "run": "run", "started_from": "random weights",
    }  # fmt: skip
    view = said["view"]
    assert (view["resize"], view["crop"], view["interpolation"]) == (37, [32, 32], "bicubic")
    assert (view["mean"], view["std"]) == (MEAN, STD)
    assert said["evaluation"] == {"knn": {"top_1": 33.3}}
    assert said["data"]["images"] == 12
    found = files.newest(vit / "checkpoints", contents=False)
    assert found is not None
    assert said["checkpoint"]["file"] == found[0].name
    assert said["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert said["files"].keys() == {"README.md", "config.json", "model.safetensors"}
    page = (out / "README.md").read_text()
    assert "license: mit" in page
    assert 'timm.create_model("local-dir:birds-vit", pretrained=True)' in page
    assert (out / "model.safetensors").stat().st_mode == (out / "README.md").stat().st_mode


def test_what_a_backbone_cannot_have_is_refused_with_what_it_can(
    narrow: Path, tmp_path: Path
) -> None:
    with pytest.raises(ExportError) as raised:
        sslengine.export(narrow, tmp_path / "out")
    assert "with config.MODEL.TRUNK.RESNETS.WIDTH_MULTIPLIER" in str(raised.value)
    able = str(raised.value).rpartition("--to ")[2].rstrip(".").split(" | ")
    assert {"pt2", "state-dict"} <= set(able) <= {"onnx", "pt2", "state-dict"}
    with pytest.raises(UnknownNameError, match=r"(?s)Did you mean 'onnx'.*There is:.* timm,"):
        sslengine.export(narrow, tmp_path / "out", "onx")
    assert not list(tmp_path.iterdir())


def test_the_folder_where_the_user_is(
    narrow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    sslengine.export(narrow, ".", "state-dict")
    assert sorted(os.listdir(".")) == ["README.md", "manifest.json", "model.safetensors"]
    assert Path("README.md").read_text().splitlines()[5] == "# empty"
    with pytest.raises(OutputError, match="is not empty, and is not overwritten"):
        sslengine.export(narrow, "../empty", "state-dict")


def test_a_folder_of_weights_with_a_config(tmp_path: Path) -> None:
    torch.save(
        timm.create_model("resnet10t", num_classes=0).state_dict(), tmp_path / "pytorch_model.bin"
    )
    keys = ["MODEL.TRUNK.NAME=timm", "MODEL.TRUNK.TIMM.model=resnet10t"]
    typed = [f"config.{each}" for each in keys]
    sslengine.export(
        tmp_path, tmp_path / "out", "state-dict", config="photos/simclr", overrides=typed
    )
    said = _manifest(tmp_path / "out")["checkpoint"]
    content = (tmp_path / "pytorch_model.bin").read_bytes()
    assert said == {
        "file": f"{tmp_path.name}/pytorch_model.bin",
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    skip = "config.MODEL.WEIGHTS_INIT.SKIP_LAYERS=[layer4.0.conv2]"
    with pytest.raises(CheckpointError, match="asked to leave out trunk.layer4.0.conv2.weight"):
        sslengine.export(
            tmp_path, tmp_path / "two", "state-dict", config="photos/simclr",
            overrides=[*typed, skip],
        )  # fmt: skip


def test_nothing_is_overwritten(narrow: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("full", "file", "link"):
        with pytest.raises(OutputError, match="is not overwritten"):
            sslengine.export(narrow, tmp_path / name, "state-dict")
    (tmp_path / "empty").mkdir()
    sslengine.export(narrow, tmp_path / "empty", "state-dict")
    names = {"README.md", "manifest.json", "model.safetensors"}
    assert {each.name for each in (tmp_path / "empty").iterdir()} == names
    assert {each.name for each in tmp_path.iterdir()} == {"full", "file", "link", "empty"}


def test_a_checkpoint_of_a_run_can_be_named(narrow: Path, tmp_path: Path) -> None:
    first = narrow / "checkpoints" / "model_phase0.torch"
    sslengine.export(first, tmp_path / "first", to="state-dict")
    assert _manifest(tmp_path / "first")["checkpoint"]["file"] == first.name
    state = torch.load(first, weights_only=True)["classy_state_dict"]["base_model"]["model"]
    found = load_file(tmp_path / "first" / "model.safetensors")
    assert found.keys() == state["trunk"].keys()
    assert all(torch.equal(found[name], each) for name, each in state["trunk"].items())
    alone = tmp_path / "alone.torch"
    shutil.copy(first, alone)
    with pytest.raises(CheckpointError, match="is not in the folder `checkpoints` of a run"):
        sslengine.export(alone, tmp_path / "second")
    with pytest.raises(CheckpointError, match="there is no such run, and no such checkpoint"):
        sslengine.export(tmp_path / "nothing", tmp_path / "second")


def test_student_and_teacher(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", **BYOL)
    run.describe()
    train(run)
    found = {}
    for network in ("auto", "student", "teacher"):
        out = sslengine.export(run.run_dir, tmp_path / network, "state-dict", network=network)
        assert _manifest(out)["network"] == ("student" if network == "auto" else network)
        found[network] = load_file(out / "model.safetensors")
    assert all(torch.equal(each, found["auto"][name]) for name, each in found["student"].items())
    assert any(not torch.equal(each, found["teacher"][n]) for n, each in found["student"].items())


@torch.no_grad()
def test_a_trunk_of_bgr_is_exported_for_rgb(narrow: Path, tmp_path: Path) -> None:
    bgr = ["config.MODEL.INPUT_TYPE=bgr"]
    out = sslengine.export(narrow, tmp_path / "bgr", "state-dict", overrides=bgr)
    predictor = Predictor(narrow, nearest=0, overrides=bgr)
    expected = predictor(_picture()).features
    predictor.trunk.load_state_dict(load_file(out / "model.safetensors"))
    (found,) = predictor.trunk(predictor.view(_picture())[None])
    torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@torch.no_grad()
def test_a_program_of_torch_takes_any_number_of_images(narrow: Path, tmp_path: Path) -> None:
    out = sslengine.export(narrow, tmp_path / "program", "pt2")
    (proof,) = _manifest(out)["proof"]
    assert (proof["library"], proof["tolerance"]) == ("torch", 1e-5)
    assert _manifest(out)["any_length"] == "batch, height, width"
    model = torch.export.load(out / "model.pt2").module()
    trunk = Predictor(narrow, nearest=0).trunk
    for shape in ((1, 3, 32, 32), (3, 3, 45, 39)):
        images = torch.rand(shape)
        torch.testing.assert_close(model(images), trunk(images)[0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("rope", ["centres", "corners_mixed"])
def test_a_program_of_rotated_tokens_takes_any_number_of_images(rope: str) -> None:
    """With a class token and registers, as DINOv3's and CAPI's."""
    options = {"IMAGE_SIZE": 32, "PATCH_SIZE": 8, "NUM_LAYERS": 1, "NUM_HEADS": 2, "HIDDEN_DIM": 32,
               "MLP_DIM": 32, "REGISTER_TOKENS": 2, "ROPE": rope}  # fmt: skip
    given = subject({"NAME": "vision_transformer", "VISION_TRANSFORMERS": options})
    program, free = trace_subject(given)
    assert free == "batch"
    images = torch.rand(3, 3, 32, 32)
    torch.testing.assert_close(
        program.module()(images), given.trunk(images)[0], rtol=1e-5, atol=1e-5
    )


def test_a_proof_can_fail() -> None:
    features = np.ones((16, 4), np.float32)
    assert difference(features + 5e-6, features, "timm") == pytest.approx(5e-6, rel=0.05)
    for wrong in (features + 1e-3, features * np.nan, features[:, :3]):
        with pytest.raises(ExportError, match="timm"):
            difference(wrong, features, "timm")


def test_a_network_that_collapsed_proves_nothing(tmp_path: Path) -> None:
    given = subject(timm_vit())
    given.features = torch.ones(16, 32)
    (told, _) = prove(Made(print, "", (Proof("timm", "", ""),) * 2), tmp_path, given)
    assert "the same features" in told["not_proved"]


@pytest.mark.parametrize("name", ['x"+str(len)+"', "back\\slash", "two\nlines"])
def test_the_name_of_a_folder_is_no_code(name: str, tmp_path: Path) -> None:
    """Neither in the lines of a page nor in the proof's process."""
    given = subject(timm_vit())
    made = prepare(given, "state-dict")
    texts = [each.value for each in ast.walk(ast.parse(usage(made, name)))
             if isinstance(each, ast.Constant)]  # fmt: skip
    assert f"{name}/model.safetensors" in texts
    if "str(" in name:
        (tmp_path / name).mkdir()
        made.write(tmp_path / name)
        (told,) = prove(made, tmp_path / name, given)
        assert "version" in told


def _detectron2_names() -> set[str]:
    """Of a ResNet-50 (build_resnet_backbone): bottlenecks, the first of each stage has a shortcut."""
    convs = ["stem.conv1"]
    for stage, blocks in zip((2, 3, 4, 5), (3, 4, 6, 3), strict=True):
        for block in range(blocks):
            names = ["conv1", "conv2", "conv3", *(["shortcut"] if block == 0 else [])]
            convs += [f"res{stage}.{block}.{name}" for name in names]
    norms = ("norm.weight", "norm.bias", "norm.running_mean", "norm.running_var")
    return {f"{conv}.{name}" for conv in convs for name in ("weight", *norms)}


def test_detectron2_gets_a_resnet_by_its_names(tmp_path: Path) -> None:
    given = subject({"NAME": "resnet", "RESNETS": {"DEPTH": 50}})
    made = prepare(given, "detectron2")
    made.write(tmp_path)
    content = pickle.loads((tmp_path / "model.pkl").read_bytes())
    assert content["matching_heuristics"] is True
    assert set(content["model"]) == _detectron2_names()
    own = given.trunk.state_dict()
    for theirs, ours in {
        "stem.conv1.weight": "conv1.weight",
        "stem.conv1.norm.running_var": "bn1.running_var",
        "res2.0.shortcut.weight": "layer1.0.downsample.0.weight",
        "res5.2.conv3.norm.bias": "layer4.2.bn3.bias",
    }.items():
        np.testing.assert_array_equal(content["model"][theirs], own[ours].numpy())
    assert "cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD = [127.5, 102.0, 76.5]" in made.usage
    assert prove(made, tmp_path, given) == [{"not_proved": made.not_proved}]


def test_the_page_lists_all_formats() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "export.md").read_text()
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert [each for each in rows if each != "to"] == list(FORMATS)
