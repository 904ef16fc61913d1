"""DINOv3: Gram anchoring beside the authors' code, its teacher in a run, and the steps in a chain."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from sslengine.checkpoint import files
from sslengine.config.facts import RunFacts
from sslengine.data.batch.masks import spread_masks_collator
from sslengine.engine import loop
from sslengine.engines.train import train
from sslengine.errors import ConfigError, DataError, TrainingError
from sslengine.launch.cli import main as command
from sslengine.losses.sinkhorn import sinkhorn
from sslengine.methods.base import Step
from sslengine.methods.dinov2 import DINOv2Loss, DINOv2Options
from sslengine.methods.dinov3 import (
    DINOv3Loss,
    DINOv3Options,
    gram_anchoring,
    resize_patches,
)
from sslengine.models.frozen import FrozenOptions
from tests.engine.runs import make_task
from tests.engines.runs import make_run
from tests.methods.resuming import assert_goes_on_bit_by_bit
from tests.methods.test_ibot import OF_TOY, ToyTrunk, filled, toy_batch
from tests.methods.whole_steps import wave

# The side of the model's grid and of the Gram teacher's; facebookresearch/dinov3 at commit 6876159:
# `GramLoss`, and the resizing of `get_gram_teacher_output`, in float64. The loss, and the squared
# norm of its gradient by the model's patches.
OFFICIAL = {
    (2, 4): (0.5295947133383071, 0.01583430306478502),
    (2, 2): (0.35586468519259856, 0.042796715056287356),
    (3, 5): (1.0290468358697111, 0.0005250294665355827),
}


class Fixed(nn.Module):
    """A trunk with these patches for any images."""

    def __init__(self, patches: Tensor) -> None:
        super().__init__()
        self.patches = nn.Parameter(patches)

    def forward(self, images: Tensor, names: list[str]) -> list[Tensor]:
        assert names == ["lastPATCH"]
        return [self.patches]


def made(**options: Any) -> Any:
    given = DINOv3Options(**OF_TOY, **options)
    return filled(DINOv3Loss(given, ToyTrunk(), RunFacts(resumes=True)))  # type: ignore[arg-type]


@pytest.mark.parametrize("sides", OFFICIAL, ids=str)
def test_beside_the_authors_code(sides: tuple[int, int]) -> None:
    side, larger = sides
    teacher = wave((6, larger * larger, 5), 2)
    student = wave((6, side * side, 5), 1).requires_grad_()
    found = gram_anchoring(student, resize_patches(teacher, torch.zeros(6, 3, 8, 8), side, side))
    found.backward()
    loss, gradient = OFFICIAL[sides]
    torch.testing.assert_close(found.item(), loss, rtol=1e-9, atol=0)
    torch.testing.assert_close(student.grad.square().sum().item(), gradient, rtol=1e-9, atol=0)


def test_the_rest_is_dinov2() -> None:
    """With the same options, and the Gram part with its weight."""
    options: dict[str, Any] = {"targets": "sinkhorn", "momentum": 0.994, "teacher_temp_max": 0.07}
    batch = toy_batch()
    other = filled(DINOv2Loss(DINOv2Options(**OF_TOY, **options), ToyTrunk()))  # type: ignore[arg-type]
    expected = other(batch, Step.alone())
    method = made(gram_weight=2.0, **options)
    tokens = torch.cat([*batch.sample["input"]])
    anchor = wave(tuple(tokens[:, 1:].shape), 3)
    method.gram.trunk = Fixed(anchor)
    found = method(batch, Step.alone())
    for name in ("classes", "patches", "koleo"):
        assert torch.equal(found[name], expected[name])
    mask = batch.sample["mask"].flatten(1).unsqueeze(-1)
    patches = torch.where(mask, method.student.trunk.hidden, tokens[:, 1:])
    torch.testing.assert_close(found["gram"], gram_anchoring(patches, anchor))
    torch.testing.assert_close(found["loss"], expected["loss"] + 2 * found["gram"])


@pytest.mark.parametrize("weight", [0.5, 0.0])
def test_local_crops_may_weigh_less(weight: float) -> None:
    """The authors' `local_loss_weight_schedule`: terms of local crops times the weight, over the
    number of all terms."""
    batch = toy_batch()
    method = made(local_weight=weight, koleo_weight=0.0, teacher_temp_max=0.07)
    found = method(batch, Step.alone())
    scores, *_ = method.teacher(batch.sample["input"], {})
    temperature, _ = method.options.temperatures(Step.alone())
    targets = sinkhorn(scores, temperature, 3).unflatten(0, (2, -1))
    rows, *_ = method.look(batch)
    terms = []
    for number, view in enumerate(rows.chunk(4)):
        log_q = (view / 0.1).log_softmax(dim=-1)
        factor = 1.0 if number < 2 else weight
        terms += [-factor * (p * log_q).sum(-1) for u, p in enumerate(targets) if u != number]
    expected = torch.stack(terms).mean()
    torch.testing.assert_close(found["classes"], expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found["loss"], expected + found["patches"], rtol=1e-9, atol=1e-12)


# ---- in a run

VIT = {"model": "vit_small_patch16_dinov3",
       "arguments": {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2,
                     "init_values": 0.1}}  # fmt: skip
OWN_HEADS = {
    "output_dim": 6,
    "patch_output_dim": 6,
    "head": {"hidden_dim": 12, "bottleneck_dim": 8},
}


def of_run(large: int = 16, resized_to: int = 0, **options: Any) -> dict[str, Any]:
    crops = {"name": "ImgPilToMultiCrop", "total_num_crops": 4, "size_crops": [large, 8],
             "num_crops": [2, 2], "crop_scales": [[0.5, 1.0], [0.2, 0.5]]}  # fmt: skip
    return {
        "DATA__TRAIN__TRANSFORMS": [crops, {"name": "ToTensor"}],
        "DATA__TRAIN__COLLATE_FUNCTION": "spread_masks_collator",
        "DATA__TRAIN__COLLATE_FUNCTION_PARAMS": {"patch_size": 4, "resized_to": resized_to},
        "MODEL__TRUNK": {"NAME": "timm", "TIMM": VIT},
        "MODEL__HEAD__PARAMS": [],
        "LOSS": {"name": "dinov3_loss", "dinov3_loss": {**OWN_HEADS, **options}},
    }  # fmt: skip


def trunk(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): each for n, each in weights.items() if n.startswith(prefix)}


@pytest.mark.parametrize("refreshes", [0, 1])
def test_resumes_to_the_bit_with_its_gram_teacher(refreshes: int, tmp_path: Path) -> None:
    """Refreshed after the second update, and at most so often; the state has its weights."""
    changes = of_run(gram_weight=2.0, gram_refresh=2, gram_refreshes=refreshes)
    task = assert_goes_on_bit_by_bit(tmp_path, **changes)
    gram, teacher = task.loss.gram.state_dict(), task.loss.teacher.state_dict()
    assert not task.loss.gram.training
    assert not any(each.requires_grad for each in task.loss.gram.parameters())
    again = make_task(tmp_path / "start", **changes)
    start = again.loss.gram.state_dict()
    same = all(torch.equal(gram[name], start[name]) for name in start)
    assert same == (refreshes == 0)
    assert any(
        not torch.equal(each, gram[f"trunk.{name}"])
        for name, each in trunk(teacher, "module.trunk.trunk.").items()
    )


def test_the_gram_teacher_sees_the_larger_views(tmp_path: Path) -> None:
    task = make_task(tmp_path, **of_run(large=32, resized_to=16, gram_weight=1.0))
    seen: list[tuple[int, ...]] = []
    task.loss.gram.trunk.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape))
    loop.run(task)
    assert {each[-2:] for each in seen} == {(32, 32)}


def test_the_collator_resizes() -> None:
    views = torch.linspace(0, 1, 32).expand(3, 32, 32)
    samples = [{"data": [views, views, views[:, :8, :8]], "data_idx": [n] * 3} for n in range(2)]
    found = spread_masks_collator(samples, patch_size=4, resized_to=16)
    assert [each.shape for each in found["gram_views"][0]] == [(2, 3, 32, 32)] * 2
    assert found["mask"][0].shape == (4, 4, 4)
    # A ramp resized is a ramp: each pixel the mean of two.
    middle = found["global_views"][0][0][0, 0, 8, 2:-2]
    torch.testing.assert_close(middle, views[0, 0].unflatten(0, (16, 2)).mean(1)[2:-2])
    with pytest.raises(DataError, match="resized_to: expected up to 32"):
        spread_masks_collator(samples, patch_size=4, resized_to=64)


@pytest.mark.parametrize("starts_trained", [False, True])
def test_anchoring_to_a_network_that_is_not_trained_is_told(
    starts_trained: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, and not where the run starts from weights, such as those of the first step."""
    chain = {}
    if starts_trained:
        train(make_run(tmp_path / "first", **of_run()))
        checkpoint = str(tmp_path / "first" / "checkpoints" / "checkpoint.torch")
        chain = {"MODEL__WEIGHTS_INIT__PARAMS_FILE": checkpoint}
    make_task(tmp_path / "second", **of_run(gram_weight=2.0), **chain)
    told = [each for each in caplog.messages if "a network that is not trained" in each]
    assert len(told) == (not starts_trained)


@pytest.mark.slow
def test_three_steps_each_from_the_one_before(tmp_path: Path) -> None:
    """The second anchors to the network of the first, by its folder; the third to the second's."""
    weights: dict[str, Any] = {}
    for number, options in enumerate(({}, {"gram_weight": 2.0}, {"gram_weight": 1.5})):
        chain = {}
        if number:
            before = tmp_path / str(number - 1)
            options = {**options, "gram_teacher": {"weights": str(before)}}
            checkpoint = str(before / "checkpoints" / "checkpoint.torch")
            chain = {"MODEL__WEIGHTS_INIT__PARAMS_FILE": checkpoint}
        large = {"large": 32, "resized_to": 16} if number == 2 else {}
        train(make_run(tmp_path / str(number), **of_run(**large, **options), **chain))
        path = tmp_path / str(number) / "checkpoints" / "checkpoint.torch"
        weights[str(number)] = torch.load(path, weights_only=False)["classy_state_dict"]
    for number in (1, 2):
        loss = weights[str(number)]["loss"]
        gram, teacher = (
            trunk(loss, "gram.trunk."),
            trunk(weights[str(number - 1)]["loss"], "teacher.module.trunk.trunk."),
        )
        assert gram
        for name, each in gram.items():
            assert torch.equal(each, teacher[name]), name


SMALL = [
    "config=quickstart/dinov3", "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=4", "config.LOG_FREQUENCY=1000",
    "config.DATA.TRAIN.DATA_LIMIT=8", "config.DATA.NUM_DATALOADER_WORKERS=0",
    "config.MODEL.TRUNK.VISION_TRANSFORMERS.NUM_LAYERS=1",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True])
def test_resumes_without_the_folder_that_it_started_from(
    named: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its Gram teacher's and its weights'. named: the run's folder has the run's number."""
    first, second = tmp_path / "first", tmp_path / "second"
    number = ["config.CHECKPOINT.APPEND_DISTR_RUN_ID=true", "config.DISTRIBUTED.RUN_ID=seven"]

    def run(folder: Path, epochs: int, *more: str) -> int:
        of = f"config.CHECKPOINT.DIR={folder}", f"config.OPTIMIZER.num_epochs={epochs}"
        return command([*SMALL, *of, *more])

    anchored = [f"config.LOSS.dinov3_loss.gram_teacher.weights={first}",
                "config.LOSS.dinov3_loss.gram_weight=2"]  # fmt: skip
    weights = f"config.MODEL.WEIGHTS_INIT.PARAMS_FILE={first}/checkpoints/checkpoint.torch"
    started = [*anchored, weights, *(number if named else [])]
    assert run(first, 1) == run(second, 1, *started) == 0
    of_first = trunk(files.newest(first / "checkpoints")[1]["classy_state_dict"]["loss"],
                     "teacher.module.trunk.trunk.")  # fmt: skip
    del of_first["mask_token"]  # of use in training alone
    shutil.rmtree(first)
    assert run(second, 2, *started) == 0
    state = files.newest(second / ("seven" if named else "") / "checkpoints")[1][
        "classy_state_dict"
    ]
    assert state["num_updates"] == 4
    gram = trunk(state["loss"], "gram.trunk.")
    assert gram.keys() == of_first.keys()
    floats = [name for name, each in gram.items() if each.is_floating_point()]
    assert all(torch.equal(gram[name], of_first[name]) for name in floats)
    assert run(tmp_path / "third", 1, *anchored) == 2
    said = f"gram_teacher.weights: there is no file or folder {first}. If it was moved, set this"
    assert said in capsys.readouterr().err


def test_what_is_refused(tmp_path: Path) -> None:
    (problem,) = DINOv3Options(gram_teacher=FrozenOptions(weights="x")).check()
    assert "gram_teacher: set gram_weight above 0" in problem
    with pytest.raises(ConfigError, match=r"gram_teacher.weights: there is no file or folder"):
        make_task(tmp_path, **of_run(gram_weight=1.0, gram_teacher={"weights": "nowhere"}))
    with pytest.raises(TrainingError, match="7 patches of the Gram teacher do not make a grid"):
        resize_patches(torch.zeros(2, 7, 3), torch.zeros(2, 3, 16, 16), 2, 2)


def test_a_gram_teacher_of_timms_is_refreshed(tmp_path: Path) -> None:
    """It has no mask token; one with other layers is refused before training."""
    file = str(tmp_path / "w.pth")
    for depth in (1, 2):
        arguments = {**VIT["arguments"], "depth": depth}
        torch.save(timm.create_model(VIT["model"], num_classes=0, **arguments).state_dict(), file)
        named = {"timm": VIT["model"], "arguments": arguments, "weights": file}
        changes = of_run(gram_weight=1.0, gram_refresh=1, gram_refreshes=99, gram_teacher=named)
        if depth == 2:
            with pytest.raises(ConfigError, match=r"other layers .* Set it to 0. \(blocks.1"):
                make_task(tmp_path, **changes)
            return
        task = make_task(tmp_path, [], **changes)
        loop.run(task)
        gram = dict(task.loss.gram.trunk.named_parameters())
        teacher = dict(task.loss.teacher.module.trunk.trunk.named_parameters())
        assert teacher.keys() - gram.keys() == {"mask_token"}
        assert all(torch.equal(each, teacher[name]) for name, each in gram.items())
