"""Files that other libraries write after training for a few steps on a CPU, and ours in lightly-train.

lightly-train 0.18.0 and stable-pretraining 0.1.8, where they are installed. solo-learn 1.0.2 cannot
be imported beside today's Lightning; a step of its MoCo v2+, with the scheduler of pl_bolts
replaced, gave the names that test_checkpoint_families.py has.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from sslengine.errors import CheckpointError
from sslengine.export.formats import prepare
from tests.export.subjects import subject, timm_vit
from tests.models.test_checkpoint_families import RESNET, start

# The libraries use what others have announced to remove.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "export.md").read_text()
SIDE = 32
VIT = {"img_size": SIDE, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
TIMM_VIT = {"NAME": "timm", "TIMM": {"model": "vit_tiny_patch16_224", "arguments": VIT}}
TORCHVISION = {"NAME": "resnet", "RESNETS": {"DEPTH": 18}}


def same_features(trunk: nn.Module, theirs: nn.Module) -> bool:
    """Of the class token or the pooled map; theirs may have a classifier, or be in training mode."""
    images = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    if isinstance(theirs, timm.models.VisionTransformer):
        images = images[..., :SIDE, :SIDE]
    for name in ("fc", "head"):
        if hasattr(theirs, name):
            setattr(theirs, name, nn.Identity())
    with torch.no_grad():
        ours, expected = trunk(images)[0].flatten(1), theirs.eval()(images).flatten(1)
    assert expected.std(0).max() > 1e-4
    return torch.allclose(ours, expected, rtol=1e-5, atol=1e-5)


# --- lightly-train


@pytest.fixture
def lightly_train(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LIGHTLY_TRAIN_EVENTS_DISABLED", "1")
    return pytest.importorskip("lightly_train")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two classes of four images."""
    for number in range(8):
        file = tmp_path / "pictures" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (48, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file)
    return tmp_path / "pictures"


HARDWARE = {"num_workers": 0, "devices": 1, "accelerator": "cpu", "precision": "32-true"}
SMALL: dict[str, Any] = {"layers": [1] * 4, "channels": [8] * 4}  # as RESNET
SMALL_DINO = {"hidden_dim": 16, "bottleneck_dim": 8, "output_dim": 32, "momentum_start": 0.5}
RUNS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any], dict[str, Any]]] = {
    # lightly-train's model, its arguments, method and its arguments, our trunk
    "simclr, timm": ("timm/resnet18", SMALL, "simclr", {}, RESNET),
    "simclr, torchvision": ("torchvision/resnet18", {}, "simclr", {}, TORCHVISION),
    "dino, timm": ("timm/vit_tiny_patch16_224", VIT, "dino", SMALL_DINO, TIMM_VIT),
    "dino, torchvision": ("torchvision/resnet18", {}, "dino", SMALL_DINO, TORCHVISION),
    "distillation": ("timm/resnet18", SMALL, "distillation",
                     {"teacher": "dinov2/_vittest14"}, RESNET),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_lightly_trains_checkpoint_and_its_exported_model(
    name: str, tmp_path: Path, pictures: Path, lightly_train: Any
) -> None:
    model, arguments, method, method_arguments, trunk = RUNS[name]
    views: dict[str, Any] = {"image_size": (SIDE, SIDE)}
    if method == "dino":
        views["local_view"] = {"num_views": 1, "view_size": (16, 16)}
    elif method == "distillation":
        views["image_size"] = (56, 56)  # of the teacher's patches of 14
    lightly_train.pretrain(
        out=tmp_path / "run", data=pictures, model=model, method=method, epochs=2, batch_size=4,
        model_args=arguments, method_args=method_arguments, transform_args=views,
        loggers={"tensorboard": None}, **HARDWARE,
    )  # fmt: skip
    file = tmp_path / "run/checkpoints/last.ckpt"
    content = torch.load(file, weights_only=False)
    theirs = content["lightly_train"]["models"]["model"]  # DINO's teacher
    both = method == "dino"
    ours, loaded = start(trunk, tmp_path / "run")
    assert same_features(ours, theirs)
    assert loaded.kind == "a checkpoint of a single network"
    ours, loaded = start(trunk, file, TRUST_PICKLE=True)
    assert same_features(ours, theirs)
    assert loaded.kind == "a checkpoint of lightly-train"
    assert loaded.network == ("teacher" if both else "model")
    ours, _ = start(trunk, file, TRUST_PICKLE=True, NETWORK="student")
    assert same_features(ours, theirs) != both
    with pytest.raises(CheckpointError, match="needs code to load"):
        start(trunk, file)


def exported(trunk: dict[str, Any], to: str, folder: Path) -> Path:
    folder.mkdir()
    prepare(subject(trunk), to).write(folder)
    return folder


def close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    """Their other tensors are new heads; statistics of batches move at any learning rate."""
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    return all(
        torch.allclose(each, theirs[name], rtol=0, atol=1e-6)
        for name, each in ours.items()
        if not name.endswith(statistics)
    )


@pytest.mark.parametrize("way", ["network", "vit", "resnet"])
def test_lightly_train_trains_on_from_our_weights(
    way: str, tmp_path: Path, pictures: Path, lightly_train: Any
) -> None:
    trunk = {"NAME": "timm", "TIMM": {"model": "resnet18"}} if way == "resnet" else timm_vit()
    name = f"local-dir:{exported(trunk, 'timm', tmp_path / 'weights')}"
    views: dict[str, Any] = {"image_size": (SIDE, SIDE)}
    given: dict[str, Any] = {"model": f"timm/{name}", "model_args": {"pretrained": True}}
    if way == "network":
        given = {"model": timm.create_model(name, pretrained=True)}
    elif way == "vit":  # as docs/export.md has it
        views["local_view"] = {"num_views": 1, "view_size": (16, 16)}
        given["model_args"] = {"pretrained": True, "dynamic_img_size": True}
        given["method_args"] = SMALL_DINO
        assert 'method="dino",\n    model="timm/local-dir:birds-vit",\n' in PAGE
        assert 'model_args={"pretrained": True, "dynamic_img_size": True},' in PAGE
    for rate in (0.0, 100.0):  # at a rate of 0 a run ends with the weights that it began with
        out = tmp_path / f"run{rate}"
        lightly_train.pretrain(
            out=out, data=pictures, method="dino" if way == "vit" else "simclr", epochs=2,
            batch_size=4, transform_args=views, loggers={"tensorboard": None},
            optim_args={"lr": rate}, **given, **HARDWARE,
        )  # fmt: skip
        ended = torch.load(out / "exported_models/exported_last.pt")
        ours = load_file(tmp_path / "weights/model.safetensors")
        assert close(ours, ended) == (rate == 0)


@pytest.mark.parametrize("to", ["timm", "torchvision"])
def test_lightly_train_classifies_with_our_weights(
    to: str, tmp_path: Path, pictures: Path, lightly_train: Any
) -> None:
    weights = exported(timm_vit() if to == "timm" else TORCHVISION, to, tmp_path / "weights")
    if to == "timm":
        model, of_model = f"timm/local-dir:{weights}", {"backbone_args": {"pretrained": True}}
        ours = load_file(weights / "model.safetensors")
        assert 'model_args={"backbone_args": {"pretrained": True}}' in PAGE
    else:
        model, of_model = "torchvision/resnet18", {"backbone_weights": str(weights / "model.pth")}
        ours = torch.load(weights / "model.pth")
        assert 'model_args={"backbone_weights": "birds/model.pth"}' in PAGE
    for rate in (1e-20, 0.1):  # 0 is refused
        out = tmp_path / f"run{rate}"
        lightly_train.train_image_classification(
            out=out, model=model, steps=1, batch_size=4,
            data={"train": pictures, "val": pictures, "classes": {0: "a", 1: "b"}},
            transform_args={"image_size": (SIDE, SIDE)},
            model_args={**of_model, "lr": rate, "weight_decay": 0.0}, **HARDWARE,
        )  # fmt: skip
        file = out / "exported_models/exported_last.pt"
        ended = {
            name.split("._model.")[-1].split("._features.")[-1]: each
            for name, each in torch.load(file, weights_only=False)["train_model"].items()
        }
        assert close(ours, ended) == (rate < 0.1)


# --- stable-pretraining


@pytest.fixture
def spt() -> Any:
    return pytest.importorskip("stable_pretraining")


class Views(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> dict[str, Any]:
        one, other = torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(number))
        return {"one": one, "other": other, "label": number % 2}


def small_vit() -> nn.Module:
    made: nn.Module = timm.create_model("vit_tiny_patch16_224", num_classes=0, **VIT)
    return made


def simclr(spt: Any) -> Any:
    def forward(self: Any, batch: dict[str, Any], stage: str) -> dict[str, Any]:
        one, other = self.backbone(batch["one"]), self.backbone(batch["other"])
        loss = self.loss_of(self.projector(one), self.projector(other))
        return {"loss": loss, "embedding": one, "label": batch["label"]}

    return spt.Module(
        backbone=small_vit(), projector=nn.Linear(24, 8), forward=forward,
        loss_of=spt.losses.NTXEntLoss(0.5),
    )  # fmt: skip


def byol(spt: Any) -> Any:
    def forward(self: Any, batch: dict[str, Any], stage: str) -> dict[str, Any]:
        student = self.projector.forward_student(self.backbone.forward_student(batch["one"]))
        with torch.no_grad():
            teacher = self.projector.forward_teacher(self.backbone.forward_teacher(batch["other"]))
        return {"loss": (student - teacher).square().mean()}

    wrapper = spt.backbone.utils.TeacherStudentWrapper
    return spt.Module(
        backbone=wrapper(small_vit(), base_ema_coefficient=0.5),
        projector=wrapper(nn.Linear(24, 8)), forward=forward,
    )  # fmt: skip


def mae(spt: Any) -> Any:
    made = spt.methods.MAE(small_vit(), decoder_embed_dim=16, decoder_depth=1, decoder_num_heads=2)
    return of_one_image(made)


def of_one_image(method: Any) -> Any:
    learn = method.forward
    method.forward = types.MethodType(
        lambda self, batch, stage: {"loss": learn(batch["one"]).loss}, method
    )
    return method


def trained(spt: Any, module: Any, file: Path, probed: bool) -> Any:
    lightning = pytest.importorskip("lightning.pytorch")
    learner = {"optimizer": {"type": "SGD", "lr": 0.1}, "scheduler": {"type": "ConstantLR"}}
    module.optim = {"main": {"modules": "backbone|projector|encoder|decoder", **learner}}
    callbacks = [spt.callbacks.TeacherStudentCallback()]
    if probed:
        accuracy = pytest.importorskip("torchmetrics.classification").MulticlassAccuracy(2)
        callbacks.append(
            spt.callbacks.OnlineProbe(
                module, name="linear", input="embedding", target="label", probe=nn.Linear(24, 2),
                loss=nn.CrossEntropyLoss(), metrics={"accuracy": accuracy}, **learner,
            )
        )  # fmt: skip
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        callbacks=callbacks, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(Views(), batch_size=4))
    trainer.save_checkpoint(file)
    return module


MODULES: dict[str, tuple[Callable[[Any], Any], bool, str, str, str]] = {
    # with a linear probe, the network's place (student), the teacher's, what our log calls the file
    "simclr": (simclr, False, "backbone", "", "PyTorch Lightning"),
    "simclr, probed": (simclr, True, "backbone", "", "stable-pretraining"),
    "byol": (byol, False, "backbone.student", "backbone.teacher", "stable-pretraining"),
    "mae": (mae, False, "encoder.vit", "", "a single network"),
}


@pytest.mark.parametrize("name", MODULES)
def test_checkpoints_of_stable_pretraining(name: str, tmp_path: Path, spt: Any) -> None:
    make, probed, student, teacher, kind = MODULES[name]
    file = tmp_path / "last.ckpt"
    module = trained(spt, make(spt), file, probed)
    for wanted, place in {"auto": teacher or student, "student": student}.items():
        ours, loaded = start(TIMM_VIT, file, NETWORK=wanted)
        assert loaded.kind == f"a checkpoint of {kind}"
        assert same_features(ours, module.get_submodule(place))
    if teacher:
        assert not same_features(ours, module.get_submodule(teacher))
