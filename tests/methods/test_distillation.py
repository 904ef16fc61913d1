from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor
from torch.distributions import Categorical
from torch.nn import functional as F

from sslengine.config.compose import overrides
from sslengine.config.facts import RunFacts
from sslengine.config.resolve import resolve
from sslengine.distributed.ranks import rank, world_size
from sslengine.engine import loop
from sslengine.engines.train import train
from sslengine.errors import CheckpointError, ConfigError
from sslengine.launch.local import launch
from sslengine.methods.base import Step, callbacks
from sslengine.methods.distillation import DistillationLoss, DistillationOptions
from sslengine.models.frozen import FrozenOptions, digest
from tests.engine.runs import make_task
from tests.engines.runs import make_run
from tests.methods.resuming import KeepState, assert_goes_on_bit_by_bit
from tests.ranks import RankPool
from tests.teachers import WIDTH, weights_of_timms

FORMS = ("cosine", "mse", "kl")
TEMPERATURES = {"teacher_temp": 0.5, "student_temp": 0.8}
IMAGES, PIXELS = 4, 3 * 8 * 8


class Student(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        values = torch.sin(torch.arange(PIXELS * width, dtype=torch.float64) * 0.37)
        self.weight = torch.nn.Parameter(values.view(PIXELS, width))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.weight


def images() -> Tensor:
    steps = torch.arange(IMAGES * PIXELS, dtype=torch.float64)
    return torch.sin(steps * 0.13).view(IMAGES, 3, 8, 8)


def made(form: str, teacher: FrozenOptions, width: int) -> tuple[DistillationLoss, Student]:
    options = DistillationOptions(teacher, form, **TEMPERATURES)
    method, model = DistillationLoss(options, RunFacts()), Student(width)
    for attach in callbacks(method, "attach"):
        attach(model)
    return method.double().train(), model


def published(form: str, t: Tensor, s: Tensor) -> Any:
    """Row by row."""
    total: Any = 0.0
    for one, other in zip(t, s, strict=True):
        if form == "cosine":
            total = total + 1 - (one @ other) / ((one @ one).sqrt() * (other @ other).sqrt())
        elif form == "mse":
            total = total + sum((b - a) ** 2 for a, b in zip(one, other)) / len(one)
        else:
            p, q = (one / 0.5).exp(), (other / 0.8).exp()
            p, q = p / p.sum(), q / q.sum()
            total = total + sum(a * (a.log() - b.log()) for a, b in zip(p, q))
    return total / len(t)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its head has 8 scores."""
    folder = tmp_path_factory.mktemp("run")
    few = {"DATA__TRAIN__DATA_LIMIT": 4, "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 2}
    made_run = make_run(folder, OPTIMIZER__num_epochs=1, **few)
    assert train(made_run)
    return folder


def of_rank(form: str, teacher: FrozenOptions, width: int) -> tuple[Tensor, Tensor, bytes]:
    method, model = made(form, teacher, width)
    share = IMAGES // world_size()
    mine = images()[rank() * share : (rank() + 1) * share]
    loss = method(model(mine), {"input": mine}, Step.alone())
    (gradient,) = torch.autograd.grad(loss, [model.weight])
    return loss.detach(), gradient, digest(method.teacher.network)


@pytest.mark.parametrize("form", FORMS)
def test_value_and_gradient_at_one_rank_and_two(form: str, run: Path, two_ranks: RankPool) -> None:
    teacher, width = FrozenOptions(str(weights_of_timms()), "test_resnet"), WIDTH
    if form == "kl":
        teacher, width = FrozenOptions(str(run)), 8
    method, model = made(form, teacher, width)
    with torch.no_grad():
        wanted = method.teacher.network.eval()(images())[0]
    expected = published(form, wanted, model(images()))
    (gradient,) = torch.autograd.grad(expected, [model.weight])
    alone, together = [of_rank(form, teacher, width)], two_ranks.run(of_rank, form, teacher, width)
    for each in (alone, together):
        close = {"rtol": 1e-9, "atol": 1e-12}
        mean = torch.stack([loss for loss, _, _ in each]).mean()
        torch.testing.assert_close(mean, expected.detach(), **close)
        mean = torch.stack([gradient for _, gradient, _ in each]).mean(0)
        torch.testing.assert_close(mean, gradient, **close)
    assert len({hashed for *_, hashed in (*alone, *together)}) == 1


def test_the_features_are_those_of_timm() -> None:
    network = timm.create_model("test_resnet", num_classes=7)
    network.load_state_dict(torch.load(weights_of_timms()))
    network.reset_classifier(0)
    method, model = made("mse", FrozenOptions(str(weights_of_timms()), "test_resnet"), WIDTH)
    with torch.no_grad():
        apart = network.double().eval()(images()) - model(images())
    loss = method(model(images()), {"input": images()}, Step.alone())
    torch.testing.assert_close(loss, apart.square().mean())


def of_run() -> dict[str, Any]:
    teacher = {"weights": str(weights_of_timms()), "timm": "test_resnet"}
    return {
        "MODEL__HEAD__PARAMS": [["mlp", {"dims": [32, WIDTH]}]],
        "LOSS": {"name": "distillation_loss", "distillation_loss": {"teacher": teacher}},
    }


def test_resumes_to_the_bit_without_the_teacher_in_the_checkpoint(tmp_path: Path) -> None:
    task = assert_goes_on_bit_by_bit(tmp_path, **of_run())
    before = digest(make_task(tmp_path / "new", [], **of_run()).loss.teacher.network)
    assert digest(task.loss.teacher.network) == before
    assert [*task.get_classy_state()["loss"]] == ["teacher.sha256"]
    trained = {id(each) for group in task.optimizer.param_groups for each in group["params"]}
    assert not trained & {id(each) for each in task.loss.parameters()}


def test_a_run_is_not_resumed_with_another_teacher(tmp_path: Path) -> None:
    keep = KeepState(after=2)
    loop.run(make_task(tmp_path / "first", [keep], **of_run()))
    other = torch.load(weights_of_timms())
    other[next(iter(other))] += 1.0
    torch.save(other, tmp_path / "other.pth")
    changed = of_run()
    changed["LOSS"]["distillation_loss"]["teacher"]["weights"] = str(tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match="has other weights than the teacher of the run"):
        make_task(tmp_path / "second", [], **changed).set_classy_state(keep.state)


def test_resumes_when_the_teacher_has_moved_and_its_place_is_said(tmp_path: Path) -> None:
    """Its weights are not in checkpoints."""
    moved = Path(shutil.copy(weights_of_timms(), tmp_path / "here.pth"))
    changes = of_run()
    changes["LOSS"]["distillation_loss"]["teacher"]["weights"] = str(moved)
    assert train(make_run(tmp_path / "run", OPTIMIZER__num_epochs=1, **changes))
    moved = moved.rename(tmp_path / "there.pth")
    with pytest.raises(ConfigError, match=r"teacher.weights: there is no file or folder /.*here"):
        train(make_run(tmp_path / "run", OPTIMIZER__num_epochs=2, **changes))
    changes["LOSS"]["distillation_loss"]["teacher"]["weights"] = str(moved)
    allowed = {"CHECKPOINT__ALLOW_CHANGED_CONFIG": True}
    assert train(make_run(tmp_path / "run", OPTIMIZER__num_epochs=2, **changes, **allowed))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ibot", "dinov2"])
def test_of_a_teacher_with_several_heads_it_is_that_of_the_class_token(
    name: str, tmp_path: Path
) -> None:
    """Others score patches, or leave features unchanged."""
    values = {
        "DATA.TRAIN.DATA_LIMIT": 8, "DATA.TRAIN.BATCHSIZE_PER_REPLICA": 4,
        "DATA.NUM_DATALOADER_WORKERS": 0, "OPTIMIZER.num_epochs": 1,
        "CHECKPOINT.DIR": str(tmp_path), "CHECKPOINT.EXPORT_AT_END": False,
    }  # fmt: skip
    launch(resolve([f"config=quickstart/{name}", *overrides(values)]))
    options = DistillationOptions(FrozenOptions(str(tmp_path)), "kl")
    loss = DistillationLoss(options, RunFacts())
    loss.attach(torch.nn.Identity())
    network = loss.teacher.network
    views = torch.sin(torch.arange(2 * 3 * 48 * 48) * 0.1).view(2, 3, 48, 48)
    with torch.no_grad():
        scores = network.heads[0](network.trunk(views, ["lastCLS"])[0])
    assert scores.shape == (2, 64)
    ours = torch.sin(torch.arange(128.0)).view(2, 64)
    wanted = (scores / options.teacher_temp).softmax(1)
    kept = Categorical(wanted).entropy().mean()
    expected = F.cross_entropy(ours / options.student_temp, wanted) - kept
    torch.testing.assert_close(loss(ours, {"input": views}, Step.alone()), expected)


def test_images_of_a_size_that_the_teacher_does_not_take() -> None:
    """The error names the teacher's key, not the model's."""
    teacher = FrozenOptions(timm="test_vit3", arguments={"depth": 1})
    method = DistillationLoss(DistillationOptions(teacher), RunFacts()).to("meta")
    method.attach(Student(8).to("meta"))
    with pytest.raises(
        ConfigError, match=r"config.LOSS.distillation_loss.teacher: Vision.*\(160\)"
    ):
        method(None, {"input": images().to("meta")}, Step.alone())
