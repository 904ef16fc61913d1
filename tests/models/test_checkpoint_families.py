"""Checkpoints of other programs, in their layouts, into a trunk.

checkpoint_layouts.json: networks whose tensors have names of their own, small, as the named version
of a library or of the authors' code makes them: each tensor's name and shape, and the first eight
numbers of the feature which that code computes of `images` with the values of `filled`.
The prefixes of the families are those in the authors' code. Files that lightly-train and
stable-pretraining themselves write are in test_checkpoint_files_of_libraries.py.
"""

from __future__ import annotations

import argparse
import copy
import json
import zlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

from sslengine.errors import CheckpointError
from sslengine.models.build import build_model
from sslengine.models.model import Model
from sslengine.models.trunks.base import Trunk
from sslengine.models.weights.load import Loaded, init_from_file
from sslengine.models.weights.names import recognise
from tests.models.trunks import checks

State = dict[str, Tensor]
LAYOUTS = json.loads(Path(__file__).with_name("checkpoint_layouts.json").read_text())


def images(side: int) -> Tensor:
    return torch.tensor(np.random.RandomState(0).standard_normal((2, 3, side, side))).float()


def filled(name: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor's values, by its name in the file."""
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if name.endswith("bias_mask"):  # DINOv3's, of queries, keys and values
        values = np.ones(shape)
        values[shape[0] // 3 : 2 * shape[0] // 3] = 0
    elif len(shape) < 2:
        values = 0.1 * values + name.endswith(("weight", "gamma", "lambda1", "running_var"))
    elif len(shape) in (2, 4):
        values = values * (2 / np.prod(shape[1:])) ** 0.5
    return torch.tensor(values).float()


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """`teacher/backbone.x` stands in the dict under `teacher`."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *keys, name = path.split("/")
        place = tree
        for key in keys:
            place = place.setdefault(key, {})
        place[name] = value
    return tree


def start(trunk: dict[str, Any], file: Path, **weights: Any) -> tuple[Trunk, Loaded]:
    tree = {"TRUNK": trunk, "WEIGHTS_INIT": {"PARAMS_FILE": str(file), **weights}}
    options = checks.options(tree)
    model = copy.deepcopy(built(json.dumps(trunk)))
    return model.trunk.eval(), init_from_file(model, options)


@cache
def built(trunk: str) -> Model:
    tree = {"TRUNK": json.loads(trunk)}
    made = checks.options(tree)
    return build_model(made)


# --- names of tensors


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda each: f"{each['source']}: {each['name']}")
def test_the_features_are_those_of_the_library(layout: dict[str, Any], tmp_path: Path) -> None:
    tensors = {name: filled(name, tuple(shape)) for name, shape in layout["tensors"].items()}
    torch.save(nested(tensors), tmp_path / "weights.pth")
    trunk, loaded = start(layout["trunk"], tmp_path / "weights.pth")
    with torch.no_grad():
        found = trunk(images(layout["side"]), [layout["feature"]])[0][:, :8]
    torch.testing.assert_close(found, torch.tensor(layout["expected"]), rtol=1e-5, atol=1e-5)
    assert loaded.kind.startswith("a checkpoint of")


VIT = {
    "NAME": "vision_transformer",
    "VISION_TRANSFORMERS": {
        "IMAGE_SIZE": 32, "PATCH_SIZE": 8, "NUM_LAYERS": 2, "NUM_HEADS": 2, "HIDDEN_DIM": 24,
        "MLP_DIM": 48, "QKV_BIAS": True,
    },
}  # fmt: skip


def shaken(network: nn.Module, seed: int) -> nn.Module:
    """Weights that differ from those that any new network has."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5 if "var" in name else tensor * 1.25)
                tensor.add_(0.05 * torch.rand_like(tensor))
    return network.eval()


def test_a_vision_transformer_of_torchvision(tmp_path: Path) -> None:
    theirs = shaken(torchvision.models.VisionTransformer(32, 8, 2, 2, 24, 48), 1)
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    trunk, loaded = start(VIT, tmp_path / "vit.pth")
    assert loaded.not_taken == ("heads.head.bias", "heads.head.weight")
    theirs.heads = nn.Identity()
    with torch.no_grad():
        torch.testing.assert_close(trunk(images(32))[0], theirs(images(32)), rtol=1e-5, atol=1e-5)


# mmpretrain 1.2.0: mmpretrain/models/backbones/vision_transformer.py and mmcv's FFN
MMPRETRAIN = {
    "patch_embed.projection": "patch_embed.proj", "layers.0.ln1": "blocks.0.norm1",
    "layers.0.attn.qkv": "blocks.0.attn.qkv", "layers.0.attn.proj": "blocks.0.attn.proj",
    "layers.0.ln2": "blocks.0.norm2", "layers.0.ffn.layers.0.0": "blocks.0.mlp.fc1",
    "layers.0.ffn.layers.1": "blocks.0.mlp.fc2", "ln1": "norm",
}  # fmt: skip


def small_vit(depth: int = 2) -> nn.Module:
    return timm.create_model(
        "vit_small_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=depth, num_heads=2,
        mlp_ratio=2,
    )  # fmt: skip


def test_a_vision_transformer_of_mmpretrain(tmp_path: Path) -> None:
    theirs = shaken(small_vit(depth=1), 2).state_dict()
    names = {
        f"{name}.{kind}": theirs[f"{ours}.{kind}"]
        for name, ours in MMPRETRAIN.items()
        for kind in ("weight", "bias")
    }
    names |= {name: theirs[name] for name in ("cls_token", "pos_embed")}
    content = {f"state_dict/backbone.{name}": each for name, each in names.items()}
    torch.save(nested({**content, "meta/mmpretrain_version": "1.2.0"}), tmp_path / "mm.pth")
    tree = {**VIT, "VISION_TRANSFORMERS": {**VIT["VISION_TRANSFORMERS"], "NUM_LAYERS": 1}}
    trunk, loaded = start(tree, tmp_path / "mm.pth")
    assert loaded.kind == "a checkpoint of mmselfsup or mmpretrain, with names of mmpretrain's ViTs"
    assert all(torch.equal(each, theirs[name]) for name, each in trunk.state_dict().items())


# --- families: where the networks are


def at(prefix: str) -> Callable[[State], State]:
    return lambda state: {prefix + name: each for name, each in state.items()}


STRAY = torch.zeros(2, 3)
# name of the family, the student's prefix, the teacher's, what else is there, what auto takes
FAMILIES: list[tuple[str, str, str, dict[str, Any], str]] = [
    ("DINO or iBOT", "student/module.backbone.", "teacher/backbone.",
     {"student/module.head.mlp.0.weight": STRAY, "dino_loss/center": STRAY, "epoch": 3}, "teacher"),
    ("DINOv2 or DINOv3", "model/student.backbone.", "model/teacher.backbone._fsdp_wrapped_module.",
     {"model/student.dino_head.mlp.0.weight": STRAY, "iteration": 3}, "teacher"),
    ("I-JEPA", "encoder/module.", "target_encoder/module.",
     {"predictor/module.mask_token": STRAY}, "teacher"),
    ("MoCo v1 or v2", "state_dict/module.encoder_q.", "state_dict/module.encoder_k.",
     {"arch": "resnet50", "state_dict/module.queue": STRAY}, "student"),
    ("MoCo v3", "state_dict/module.base_encoder.", "state_dict/module.momentum_encoder.",
     {"state_dict/module.predictor.0.weight": STRAY}, "student"),
    ("mmselfsup or mmpretrain", "state_dict/backbone.", "state_dict/encoder_k.module.0.",
     {"meta/mmengine_version": "0.10", "state_dict/neck.fc0.weight": STRAY}, "student"),
    ("mmselfsup or mmpretrain", "state_dict/backbone.", "state_dict/momentum_encoder.module.0.",
     {"meta/mmengine_version": "0.10", "state_dict/neck.fc0.weight": STRAY}, "student"),
    ("lightly-train", "state_dict/student_embedding_model.wrapped_model._model.",
     "state_dict/teacher_embedding_model.wrapped_model._model.", {}, "teacher"),
    ("lightly-train", "state_dict/embedding_model.wrapped_model._model.", "", {}, "model"),
    ("lightly-train", "state_dict/student_embedding_model.wrapped_model._features.",  # torchvision's
     "state_dict/teacher_embedding_model.wrapped_model._features.", {}, "teacher"),
    ("lightly-train", "state_dict/query_encoder.embedding_model.wrapped_model._model.",
     "state_dict/key_encoder.embedding_model.wrapped_model._model.", {}, "student"),
    ("stable-pretraining", "state_dict/backbone.student.", "state_dict/backbone.teacher.",
     {"state_dict/projector.student.0.weight": STRAY,
      "state_dict/backbone.ema_coefficient": STRAY}, "teacher"),
    ("stable-pretraining", "state_dict/student.vit.", "state_dict/teacher.backbone.vit.",
     {"state_dict/student.patch_embed.proj.weight": STRAY}, "student"),
    ("stable-pretraining", "state_dict/backbone.", "",
     {"state_dict/callbacks_modules.linear.weight": STRAY}, "model"),
    ("solo-learn", "state_dict/backbone.", "state_dict/momentum_backbone.",
     {"state_dict/classifier.weight": STRAY, "state_dict/queue": STRAY}, "student"),
    ("solo-learn", "state_dict/encoder.", "state_dict/momentum_encoder.",
     {"state_dict/classifier.weight": STRAY, "state_dict/momentum_classifier.weight": STRAY,
      "state_dict/projector.0.weight": STRAY, "state_dict/queue": STRAY}, "student"),
    ("lightly", "state_dict/student_backbone.", "state_dict/backbone.",
     {"state_dict/projection_head.layers.0.weight": STRAY}, "teacher"),
    ("lightly", "state_dict/backbone.", "state_dict/backbone_momentum.",
     {"state_dict/projection_head.layers.0.weight": STRAY}, "student"),
    ("lightly", "student_backbone.", "teacher_backbone.",  # the state of a module
     {"student_head.last_layer.weight": STRAY, "teacher_head.last_layer.weight": STRAY}, "teacher"),
    ("lightly", "backbone.", "backbone_momentum.",
     {"projection_head.layers.0.weight": STRAY}, "student"),
    ("PyTorch Lightning", "state_dict/backbone.", "", {"pytorch-lightning_version": "2.5"}, "model"),
    ("SwAV", "module.", "", {"module.prototypes.weight": STRAY,
                             "module.projection_head.0.weight": STRAY}, "model"),
    ("MAE", "model/", "", {"model/decoder_embed.weight": STRAY, "model/mask_token": STRAY}, "model"),
    ("a single network", "state_dict/", "state_dict_ema/", {"epoch": 3}, "student"),
    ("a single network", "", "", {}, "model"),
    ("a single network", "timm_model.", "", {}, "model"),  # transformers' wrapper
]  # fmt: skip


@cache
def small_resnet(seed: int) -> nn.Module:
    return shaken(timm.create_model("resnet18", layers=[1] * 4, channels=[8, 8, 8, 8]), seed)


RESNET = {
    "NAME": "timm",
    "TIMM": {"model": "resnet18", "arguments": {"layers": [1] * 4, "channels": [8] * 4}},
}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda each: f"{each[0]} {each[1]}")
def test_a_family_is_recognised_and_its_network_taken(
    family: tuple[str, str, str, dict[str, Any], str], tmp_path: Path
) -> None:
    name, student, teacher, others, judged = family
    states = {"student": small_resnet(1).state_dict(), "teacher": small_resnet(2).state_dict()}
    content = at(student)(states["student"]) | others
    content |= at(teacher)(states["teacher"]) if teacher else {}
    file = tmp_path / "checkpoint.pth"
    torch.save({**nested(content), "args": argparse.Namespace(lr=np.float64(0.1))}, file)
    for wanted in ("auto", "student", *(["teacher"] if teacher else [])):
        trunk, loaded = start(RESNET, file, NETWORK=wanted)
        expected = states[
            "teacher" if (judged, wanted)[wanted != "auto"] == "teacher" else "student"
        ]
        for key, tensor in trunk.state_dict().items():
            assert torch.equal(tensor, expected[key]) or "num_batches" in key
        assert loaded.kind == f"a checkpoint of {name}"
        assert loaded.network == (judged if wanted == "auto" or not teacher else wanted)
        assert {"fc.bias", "fc.weight"} <= set(loaded.not_taken)
    if not teacher:
        with pytest.raises(
            CheckpointError, match=r"NETWORK: .*holds no teacher. Expected auto or s"
        ):
            start(RESNET, file, NETWORK="teacher")


def test_a_resnet_in_a_row_of_lightly(tmp_path: Path) -> None:
    rows = nn.Sequential(*list(torchvision.models.resnet18().children())[:-1])
    torch.save({"state_dict": at("backbone.")(rows.state_dict())}, tmp_path / "lightly.ckpt")
    trunk, _ = start({"NAME": "resnet", "RESNETS": {"DEPTH": 18}}, tmp_path / "lightly.ckpt")
    assert torch.equal(trunk.conv1.weight, rows[0].weight)
    assert torch.equal(trunk.layer4[1].bn2.bias, rows[7][1].bn2.bias)


# --- files and folders


def test_folders_of_models_and_runs(tmp_path: Path) -> None:
    states = [small_resnet(seed).state_dict() for seed in (1, 2)]
    state = {name: each.clone() for name, each in states[0].items()}
    names = sorted(state)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for folder in ("timm", "bin", "parts", "run/checkpoints"):
        (tmp_path / folder).mkdir(parents=True)
    save_file(state, tmp_path / "timm/model.safetensors")
    torch.save(state, tmp_path / "bin/pytorch_model.bin")
    for file, of in parts.items():
        save_file({name: state[name] for name in of}, tmp_path / "parts" / file)
    index = {"weight_map": {name: file for file, of in parts.items() for name in of}}
    (tmp_path / "parts/model.safetensors.index.json").write_text(json.dumps(index))
    own = {"base_model": {"model": {"trunk": start(RESNET, tmp_path / "timm")[0].state_dict()}}}
    torch.save({"classy_state_dict": own}, tmp_path / "run/checkpoints/model_phase0.torch")
    (tmp_path / "run/checkpoints/checkpoint.torch").symlink_to("model_phase0.torch")
    for folder in ("timm", "bin", "parts", "run"):
        trunk, _ = start(RESNET, tmp_path / folder)
        assert torch.equal(trunk.layer4[0].conv2.weight, state["layer4.0.conv2.weight"]), folder
    with pytest.raises(CheckpointError, match=r"holds no weights: expected one of model\.safeten"):
        start(RESNET, tmp_path)
    index["weight_map"]["conv1.weight"] = "../timm/model.safetensors"
    (tmp_path / "parts/model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="which is not in its folder"):
        start(RESNET, tmp_path / "parts")


# --- what finds no place


def test_a_name_with_and_without_its_wrapper() -> None:
    content = {"conv1.weight": torch.zeros(1), "module.conv1.weight": torch.ones(1)}
    with pytest.raises(CheckpointError, match=r"w.pth has 'conv1.weight' with and without"):
        recognise(content, "auto", "w.pth")


def test_what_has_no_place_and_what_is_missing_are_named(tmp_path: Path) -> None:
    state = small_vit().state_dict()
    state["fc_norm.weight"] = state.pop("norm.weight")
    state["blocks.0.attn.q_norm.weight"] = torch.ones(12)
    torch.save({"model": state}, tmp_path / "vit.pth")
    with pytest.raises(CheckpointError) as error:
        start(VIT, tmp_path / "vit.pth")
    text = str(error.value)
    assert "vit.pth, a checkpoint of a single network, does not fit the model" in text
    assert "missing: trunk.norm.weight\n" in text
    assert "not of this model: trunk.blocks.0.attn.q_norm.weight, trunk.fc_norm.weight\n" in text
    assert "perhaps trunk.fc_norm.weight is trunk.norm.weight" in text
    assert "left out by SKIP_LAYERS" in text
    _, loaded = start(VIT, tmp_path / "vit.pth", SKIP_LAYERS=["norm.weight"])
    assert "trunk.norm.weight" not in loaded.left_out


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_a_missing_key_is_not_made_up(kind: str, tmp_path: Path) -> None:
    layout = next(each for each in LAYOUTS if any("attention.key." in n for n in each["tensors"]))
    tensors = {name: filled(name, tuple(shape)) for name, shape in layout["tensors"].items()}
    del tensors[next(n for n in tensors if n.endswith(f"attention.key.{kind}"))]
    torch.save(tensors, tmp_path / "weights.pth")
    with pytest.raises(CheckpointError, match=rf"missing: trunk\.blocks\.0\.attn\.qkv\.{kind}"):
        start(layout["trunk"], tmp_path / "weights.pth")


def test_a_scale_of_one_is_none(tmp_path: Path) -> None:
    """transformers' DINOv2 writes one also for a network that has none."""
    state = small_vit().state_dict()
    state = {name: each for name, each in state.items() if not name.startswith("head.")}
    scales = {f"blocks.{n}.ls{k}.gamma": torch.ones(24) for n in (0, 1) for k in (1, 2)}
    torch.save(state | scales, tmp_path / "ones.pth")
    trunk, _ = start(VIT, tmp_path / "ones.pth")
    assert all(torch.equal(each, state[name]) for name, each in trunk.state_dict().items())
    scales["blocks.1.ls2.gamma"][3] = 0.5
    torch.save(state | scales, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match=r"not of this model: trunk.blocks.1.ls2.gamma\n"):
        start(VIT, tmp_path / "other.pth")


@pytest.mark.parametrize("family", ["iBOT", "MAE"])
def test_the_token_of_hidden_patches(family: str, tmp_path: Path) -> None:
    """iBOT's trunk has one; MAE's is of its decoder, whatever its width."""
    trunk = {"NAME": "timm", "TIMM": {"model": "vit_tiny_patch16_224", "arguments": SMALL_TINY}}
    route = ["data", {"feat_names": ["lastPATCH"], "additional_keys": ["mask"]}]
    given: Any = {"TRUNK": trunk, "MULTI_INPUT_HEAD_MAPPING": [route]}
    options = checks.options(given)
    model = build_model(options)
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=0, **SMALL_TINY)
    state, token = shaken(theirs, 1).state_dict(), torch.rand(1, 192)
    if family == "iBOT":
        student = at("student/backbone.")({**state, "masked_embed": token})
        content = nested(student | at("teacher/backbone.")(state))
    else:
        content = {"model": {**state, "mask_token": token[None], "decoder_embed.weight": STRAY}}
    torch.save(content, tmp_path / "weights.pth")
    before = model.trunk.mask_token.detach().clone()
    options.WEIGHTS_INIT.PARAMS_FILE = str(tmp_path / "weights.pth")
    options.WEIGHTS_INIT.NETWORK = "student"
    init_from_file(model, options)
    wanted = token if family == "iBOT" else before
    assert torch.equal(model.trunk.mask_token.flatten(), wanted.flatten())
    assert torch.equal(
        model.trunk.state_dict()["blocks.0.norm1.bias"], state["blocks.0.norm1.bias"]
    )


SMALL_TINY: dict[str, Any] = {"img_size": 32, "depth": 1}


@pytest.mark.parametrize(
    ("name", "buffer"),
    [("beit_base_patch16_224", "blocks.0.attn.relative_position_index"),
     ("swin_tiny_patch4_window7_224", "layers.0.blocks.1.attn_mask")],
)  # fmt: skip
def test_what_a_network_computes_by_itself_is_left_out(
    name: str, buffer: str, tmp_path: Path
) -> None:
    """The authors' files hold it."""
    small: dict[str, Any] = {"depth": 1, "embed_dim": 12, "num_heads": 3, "img_size": 32}
    if name.startswith("swin"):
        small = {"depths": [2, 1], "embed_dim": 6, "num_heads": [1, 2], "img_size": 56}
    state = shaken(timm.create_model(name, num_classes=0, **small), 1).state_dict()
    torch.save({"model": {**state, buffer: torch.zeros(3, 3)}}, tmp_path / "theirs.pth")
    trunk = {"NAME": "timm", "TIMM": {"model": name, "arguments": small}}
    made, loaded = start(trunk, tmp_path / "theirs.pth")
    assert loaded.not_taken == (buffer,)
    assert all(torch.equal(each, state[name]) for name, each in made.state_dict().items())


def test_biases_that_the_trunk_lacks_must_be_zero(tmp_path: Path) -> None:
    layout = next(each for each in LAYOUTS if each["name"] == "DINOv3 mlp")
    tensors = {name: filled(name, tuple(shape)) for name, shape in layout["tensors"].items()}
    lacking = {
        "NAME": "timm",
        "TIMM": {**layout["trunk"]["TIMM"], "model": "vit_small_patch16_dinov3"},
    }
    torch.save(tensors, tmp_path / "weights.pth")
    with pytest.raises(
        CheckpointError, match=r"not of this model: trunk\.blocks\.0\.attn\.qkv\.bias"
    ):
        start(lacking, tmp_path / "weights.pth")
    zeros = {n: torch.zeros_like(t) if n.endswith("qkv.bias") else t for n, t in tensors.items()}
    torch.save(zeros, tmp_path / "weights.pth")
    start(lacking, tmp_path / "weights.pth")
    unmasked = {n: torch.ones_like(t) if n.endswith("bias_mask") else t for n, t in tensors.items()}
    torch.save(unmasked, tmp_path / "weights.pth")
    with pytest.raises(CheckpointError, match="missing: .*q_bias"):
        start(layout["trunk"], tmp_path / "weights.pth")


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("said", "fits"), [(3, True), (12, False), ([3, 6], True), (None, True)])
def test_heads_of_attention_are_in_the_config_of_a_folder_alone(
    said: Any, fits: bool, nested: bool, tmp_path: Path
) -> None:
    """Their number changes no shape. As transformers writes it, of CLIP in `vision_config`."""
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=0, **SMALL_TINY)
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    config = {} if said is None else {"num_attention_heads": said}
    text = json.dumps({"vision_config": config} if nested else config)
    (tmp_path / "config.json").write_text(text)
    trunk = {"NAME": "timm", "TIMM": {"model": "vit_tiny_patch16_224", "arguments": SMALL_TINY}}
    with nullcontext() if fits else pytest.raises(CheckpointError, match=r"arguments.num_heads=12"):
        start(trunk, tmp_path)


def test_of_transformers_with_another_number_of_heads(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=192, num_hidden_layers=1, intermediate_size=768, image_size=32, patch_size=16,
        layer_norm_eps=1e-6,
    )  # fmt: skip
    theirs = shaken(transformers.ViTModel(config, add_pooling_layer=False), 1).eval()
    theirs.save_pretrained(tmp_path)
    trunk: dict[str, Any] = {"NAME": "timm", "TIMM": {"model": "vit_tiny_patch16_224", "arguments": SMALL_TINY}}  # fmt: skip
    with pytest.raises(CheckpointError, match=r"says num_attention_heads 12, and the trunk has 3"):
        start(trunk, tmp_path)
    trunk["TIMM"]["arguments"] = {**SMALL_TINY, "num_heads": config.num_attention_heads}
    ours, _ = start(trunk, tmp_path)
    with torch.no_grad():
        wanted = theirs(images(32)).last_hidden_state[:, 0]
        torch.testing.assert_close(ours(images(32))[0].flatten(1), wanted, rtol=1e-4, atol=1e-4)
