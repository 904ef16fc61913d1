"""Distillation: values, several teachers and students, patches, on ranks, resumed, opened again."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from torch import Tensor
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.config.sections import read, section_problems
from sslengine.distributed.ranks import rank, world_size
from sslengine.engine import loop
from sslengine.engines.train import train
from sslengine.errors import CheckpointError, ConfigError
from sslengine.export.subject import make_subject
from sslengine.methods.base import Step
from sslengine.methods.distillation import (
    DistillationLoss,
    DistillationOptions,
    Standardize,
    TeacherOptions,
)
from sslengine.methods.whole import Batch
from sslengine.models.build import build_model, build_trunk
from sslengine.models.frozen import digest
from sslengine.models.options import ModelOptions
from sslengine.models.trunks.base import dense_feature
from sslengine.models.trunks.library_options import TimmOptions
from sslengine.models.view_trunk import lend
from sslengine.models.weights.state import model_state
from sslengine.trained import Trained, find_trained
from tests.config.recipes import resolved
from tests.engine.runs import make_task
from tests.engine.sharded import SHARDED, SMALL_VIT, assert_close, needs_shards
from tests.engine.sharded import run as run_on_ranks
from tests.engines.runs import make_run
from tests.integration.command import ROOT
from tests.methods.resuming import KeepState, assert_goes_on_bit_by_bit
from tests.ranks import RankPool
from tests.teachers import WIDTH, weights_of_timms

FORMS = ("cosine", "mse", "kl")
TEMPERATURES = {"teacher_temp": 0.5, "student_temp": 0.8}
IMAGES = 4
CLOSE = {"rtol": 1e-9, "atol": 1e-12}


def images() -> Tensor:
    steps = torch.arange(IMAGES * 3 * 8 * 8, dtype=torch.float64)
    return torch.sin(steps * 0.13).view(IMAGES, 3, 8, 8)


def of_timms(**more: Any) -> TeacherOptions:
    return TeacherOptions(str(weights_of_timms()), "test_resnet", **more)


def made(teacher: TeacherOptions, run: RunFacts | None = None, **more: Any) -> DistillationLoss:
    """In float64, with a student that is a vision transformer of 2 x 2 patches."""
    torch.manual_seed(0)
    options = read(resolved(**SMALL_VIT).config, ModelOptions)
    trunk = lend(build_model(options), options)  # type: ignore[arg-type]
    given = DistillationOptions(teacher, **TEMPERATURES, **more)
    assert [*section_problems(given)] == []
    method = DistillationLoss(given, trunk, run or RunFacts())
    trunk.trunk.double()
    return method.double().train()


def value_of(method: DistillationLoss, given: Tensor) -> Any:
    return method(Batch({"input": [given]}), Step.alone())


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


def of_rank(form: str, teacher: TeacherOptions) -> tuple[Tensor, Tensor, bytes]:
    method = made(teacher, form=form)
    share = IMAGES // world_size()
    loss = value_of(method, images()[rank() * share : (rank() + 1) * share])
    (gradient,) = torch.autograd.grad(loss, [method.trunk.trunk.patch_embed.proj.weight])
    return loss.detach(), gradient, digest(method.teachers["teacher"].network)


@pytest.mark.parametrize("form", FORMS)
def test_value_and_gradient_at_one_rank_and_two(form: str, run: Path, two_ranks: RankPool) -> None:
    teacher = TeacherOptions(str(run)) if form == "kl" else of_timms()
    method: Any = made(teacher, form=form)
    with torch.no_grad():
        wanted = method.teachers.teacher.network.eval()(images())[0]
    (features,) = method.trunk.trunk(images())
    adaptor = method.adaptors.student.teacher.summary
    expected = published(form, wanted, features @ adaptor.weight.T + adaptor.bias)
    (gradient,) = torch.autograd.grad(expected, [method.trunk.trunk.patch_embed.proj.weight])
    alone, together = [of_rank(form, teacher)], two_ranks.run(of_rank, form, teacher)
    for each in (alone, together):
        mean = torch.stack([loss for loss, _, _ in each]).mean()
        torch.testing.assert_close(mean, expected.detach(), **CLOSE)
        mean = torch.stack([gradient for _, gradient, _ in each]).mean(0)
        torch.testing.assert_close(mean, gradient, **CLOSE)
    assert len({hashed for *_, hashed in (*alone, *together)}) == 1


def test_the_features_are_those_of_timm() -> None:
    network = timm.create_model("test_resnet", num_classes=7)
    network.load_state_dict(torch.load(weights_of_timms()))
    network.reset_classifier(0)
    method: Any = made(of_timms(), form="mse")
    with torch.no_grad():
        own = method.adaptors.student.teacher.summary(method.trunk.trunk(images())[0])
        apart = network.double().eval()(images()) - own
    torch.testing.assert_close(value_of(method, images()), apart.square().mean())


UP = torch.tensor([[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]], dtype=torch.float64)  # bilinear


@pytest.mark.parametrize("form", ["cosine", "mse", "am_radio"])
def test_patches_are_compared_on_the_teachers_grid(form: str) -> None:
    """The teacher gets 128 pixels, of which its last map has 4 x 4 places."""
    teacher = of_timms(size=128, weight=3.0)
    method: Any = made(teacher, form=form, summary=0.0, patches=0.5, hidden=5)
    larger = F.interpolate(images(), (128, 128), mode="bicubic", antialias=True)
    network = method.teachers.teacher.network.trunk
    with torch.no_grad():
        wanted = network(larger, ["layer4"])[0].permute(0, 2, 3, 1)
    (tokens,) = method.trunk.trunk(images(), ["lastPATCH"])
    grid = torch.einsum("ai,bj,nijd->nabd", UP, UP, tokens.unflatten(1, (2, 2)))
    first, norm, _, last = method.adaptors.student.teacher.patches
    inner = grid @ first.weight.T + first.bias
    inner = (inner - inner.mean(-1, True)) / (
        inner.var(-1, correction=0, keepdim=True) + norm.eps
    ).sqrt()
    s = ((inner * (1 + torch.erf(inner / 2**0.5)) / 2) @ last.weight.T + last.bias).flatten(0, 2)
    t = wanted.flatten(0, 2)
    assert t.shape == (IMAGES * 16, WIDTH)
    if form == "am_radio":
        apart = (s - t).abs()
        smooth = torch.where(apart < 1, apart.square() / 2, apart - 0.5).mean()
        expected = 0.9 * published("cosine", t, s) + 0.1 * smooth
    else:
        expected = published(form, t, s)
    torch.testing.assert_close(value_of(method, images()), 1.5 * expected, **CLOSE)


@pytest.mark.parametrize(
    ("trunk", "name"),
    [({"NAME": "resnet"}, "res5"), (SMALL_VIT["MODEL__TRUNK"], "lastPATCH"),
     ({"NAME": "timm", "TIMM": {"model": "test_resnet"}}, "layer4"),
     ({"NAME": "efficientnet"}, "conv_final")],
)  # fmt: skip
def test_the_map_of_a_trunk(trunk: dict[str, Any], name: str) -> None:
    options = read(resolved(MODEL__TRUNK=trunk, MODEL__HEAD__PARAMS=[]).config, ModelOptions)
    with torch.device("meta"):
        assert dense_feature(build_trunk(options)) == name


def test_a_teacher_gets_images_in_its_own_normalisation() -> None:
    mean, std, own = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4], {"mean": [0.5] * 3, "std": [0.25] * 3}
    pixels = images() * torch.tensor(std).view(3, 1, 1) + torch.tensor(mean).view(3, 1, 1)
    facts = RunFacts(normalize=(mean, std))
    found = made(of_timms(**own), facts)._show(images(), of_timms(**own))
    torch.testing.assert_close(found, (pixels - 0.5) / 0.25)
    text = [{"name": "ToTensor"}, {"name": "Normalize", "mean": mean, "std": std}]
    changes = {**run_of({"teacher": teacher_of()}), "DATA__TRAIN__TRANSFORMS": text}
    assert make_task(Path("never"), [], **changes).loss.pixels == (mean, std)


def test_terms_of_several_teachers_and_students_add_up() -> None:
    second = of_timms(size=64, weight=0.25)
    students = {"tiny": TimmOptions("test_resnet")}
    method = made(
        of_timms(), form="am_radio", patches=2.0, teachers={"other": second}, students=students
    )
    found = value_of(method, images())
    factors = {"teacher": 1.0, "other": 0.25}
    expected = sum(
        factor
        * (found[f"{student}_{teacher}_summary"] + 2.0 * found[f"{student}_{teacher}_patches"])
        for student in ("student", "tiny")
        for teacher, factor in factors.items()
    )
    torch.testing.assert_close(found["loss"], expected, **CLOSE)
    assert len(found) == 9
    found["loss"].backward()
    trained = {n for n, each in method.named_parameters() if each.grad is not None}
    assert {n.split(".")[0] for n in trained} == {"students", "adaptors"}
    assert trained == {n for n, each in method.named_parameters() if each.requires_grad}


def _standardized(rows: Tensor) -> tuple[Tensor, ...]:
    """Of this rank's part of each of three batches, which ranks share unevenly."""
    scale = Standardize(rows.shape[-1]).double()
    step = Step.alone()
    for batch in rows.chunk(3):
        mine = batch if world_size() == 1 else (batch[:3], batch[3:])[rank()]
        output = scale(mine, step)
    still = scale(rows, Step.alone(train=False))
    return scale.mean, scale.variance, still, output


def test_targets_are_standardised_by_all_rows_of_all_ranks(two_ranks: RankPool) -> None:
    torch.manual_seed(0)
    rows = torch.randn(30, 4, dtype=torch.float64) * torch.tensor([1.0, 2, 3, 9]) + 5
    mean, variance = rows.mean(0), rows.var(0, correction=0)
    expected = (rows - mean) / variance.mean().sqrt()
    for found in (_standardized(rows), *two_ranks.run(_standardized, rows)):
        for one, other in zip(found, (mean, variance, expected), strict=False):
            torch.testing.assert_close(one, other, **CLOSE)


def teacher_of(name: str = "test_resnet", **more: Any) -> dict[str, Any]:
    return {"weights": str(weights_of_timms(name)), "timm": name, **more}


def run_of(options: dict[str, Any]) -> dict[str, Any]:
    loss = {"name": "distillation_loss", "distillation_loss": options}
    return {**SMALL_VIT, "LOSS": loss, "DATA__TRAIN__COLLATE_FUNCTION": "multicrop_collator"}


def of_run() -> dict[str, Any]:
    return run_of({"teacher": teacher_of()})


SEVERAL = {
    "teacher": teacher_of(), "teachers": {"vit": teacher_of("test_vit", size=160, weight=0.5)},
    "students": {"tiny": {"model": "test_vit3", "arguments": {"img_size": 8, "patch_size": 4}}},
    "form": "am_radio", "patches": 1.0, "hidden": 6,
}  # fmt: skip


def test_resumes_to_the_bit_without_the_teacher_in_the_checkpoint(tmp_path: Path) -> None:
    task = assert_goes_on_bit_by_bit(tmp_path, **of_run())
    teacher = task.loss.teachers.teacher.network
    before = digest(make_task(tmp_path / "new", [], **of_run()).loss.teachers.teacher.network)
    assert digest(teacher) == before
    assert [*task.get_classy_state()["loss"]] == [
        "teachers.teacher.sha256",
        *(f"adaptors.student.teacher.summary.{name}" for name in ("weight", "bias")),
    ]
    trained = {id(each) for group in task.optimizer.param_groups for each in group["params"]}
    assert not trained & {id(each) for each in teacher.parameters()}


@pytest.mark.slow
def test_several_teachers_and_students_resume_to_the_bit(tmp_path: Path) -> None:
    assert_goes_on_bit_by_bit(tmp_path, **run_of(SEVERAL))


@pytest.mark.parametrize(
    "way",
    [pytest.param({}, marks=pytest.mark.slow), pytest.param(SHARDED, marks=needs_shards)],
    ids=["DDP", "sharded"],
)
def test_several_end_on_two_ranks_where_they_do_on_one(
    two_ranks: RankPool, tmp_path: Path, way: dict[str, Any]
) -> None:
    changes = {**run_of(SEVERAL), "OPTIMIZER__num_epochs": 1}
    alone = run_on_ranks(tmp_path, changes)
    for each in two_ranks.run(run_on_ranks, tmp_path, {**changes, **way}):
        assert_close(each, alone, rtol=1e-4, atol=1e-5)


def test_each_student_is_opened_and_exported(tmp_path: Path) -> None:
    few = {"OPTIMIZER__num_epochs": 1, "DATA__TRAIN__DATA_LIMIT": 4}
    assert train(make_run(tmp_path, **run_of(SEVERAL), **few))
    task = make_task(tmp_path / "again", [], **run_of(SEVERAL), **few)
    task.set_classy_state(
        torch.load(Trained(*find_trained(tmp_path)).checkpoint)["classy_state_dict"]
    )
    given = images().float()
    for name, trunk in (("auto", task.base_model.trunk), ("tiny", task.loss.students.tiny.trunk)):
        (expected,) = trunk.eval()(given)
        trained = Trained(*find_trained(tmp_path), network=name)
        torch.testing.assert_close(trained.trunk_features(given)["trunk"], expected)
        torch.testing.assert_close(make_subject(trained).compute(given), expected)
    with pytest.raises(ConfigError, match="'tyni'"):
        Trained(*find_trained(tmp_path), network="tyni")


def test_an_earlier_run_is_opened_although_its_head_was_the_models(tmp_path: Path) -> None:
    head = {"MODEL__HEAD__PARAMS": [["mlp", {"dims": [18, WIDTH]}]]}
    assert train(make_run(tmp_path, OPTIMIZER__num_epochs=1, **of_run()))
    checkpoint = Trained(*find_trained(tmp_path)).checkpoint
    held = torch.load(checkpoint)
    before = build_model(read(resolved(**{**SMALL_VIT, **head}).config, ModelOptions))
    held["classy_state_dict"]["base_model"] = model_state(before)
    torch.save(held, tmp_path / "earlier.torch")
    opened = Trained(*find_trained(tmp_path))
    opened._restore(tmp_path / "earlier.torch", held["classy_state_dict"])
    expected = before.trunk.eval()(images().float())[0]  # type: ignore[operator]
    torch.testing.assert_close(opened.trunk_features(images().float())["trunk"], expected)


def test_a_run_is_not_resumed_with_another_teacher(tmp_path: Path) -> None:
    keep = KeepState(after=2)
    loop.run(make_task(tmp_path / "first", [keep], **of_run()))
    other = torch.load(weights_of_timms())
    other[next(iter(other))] += 1.0
    torch.save(other, tmp_path / "other.pth")
    changed = run_of({"teacher": teacher_of() | {"weights": str(tmp_path / "other.pth")}})
    with pytest.raises(CheckpointError, match="has other weights than the teacher of the run"):
        make_task(tmp_path / "second", [], **changed).set_classy_state(keep.state)


def test_resumes_when_the_teacher_has_moved_and_its_place_is_said(tmp_path: Path) -> None:
    """Its weights are not in checkpoints."""
    moved = Path(shutil.copy(weights_of_timms(), tmp_path / "here.pth"))
    changes = run_of({"teacher": teacher_of() | {"weights": str(moved)}})
    assert train(make_run(tmp_path / "run", OPTIMIZER__num_epochs=1, **changes))
    there = moved.rename(tmp_path / "there.pth")
    with pytest.raises(ConfigError, match=r"teacher.weights: there is no file or folder /.*here"):
        train(make_run(tmp_path / "run", OPTIMIZER__num_epochs=2, **changes))
    changes = run_of({"teacher": teacher_of() | {"weights": str(there)}})
    allowed = {"CHECKPOINT__ALLOW_CHANGED_CONFIG": True}
    assert train(make_run(tmp_path / "run", OPTIMIZER__num_epochs=2, **changes, **allowed))


def test_images_of_a_size_that_the_teacher_does_not_take() -> None:
    """The error names the teacher's key, not the model's."""
    teacher = TeacherOptions(str(weights_of_timms("test_vit3")), timm="test_vit3")
    with pytest.raises(
        ConfigError, match=r"config.LOSS.distillation_loss.teacher: Vision.*\(160\)"
    ):
        value_of(made(teacher), images())


def test_what_the_page_says_of_several_resolves() -> None:
    page = (ROOT / "docs" / "methods.md").read_text()
    (block,) = re.findall(r"```yaml\n(LOSS:\n.*?)```", page, re.DOTALL)
    found = resolved(**SMALL_VIT, **yaml.safe_load(block)).config.LOSS.distillation_loss
    assert (found.form, found.patches) == ("am_radio", 1.0)
    assert (found.teacher.size, found.teachers.clip.weight) == (224, 0.5)
    assert found.students.tiny.model == "vit_tiny_patch16_224"


@pytest.mark.parametrize(
    ("key", "wrong"),
    [("feature", {"form": "kl", "feature": "lastCLS"}), ("patches", {"form": "kl", "patches": 1.0}),
     ("summary", {"summary": 0.0}), ("teachers.teacher", {"teachers": {"teacher": of_timms}})],
)  # fmt: skip
def test_options_that_contradict_each_other(key: str, wrong: dict[str, Any]) -> None:
    (problem,) = replace(DistillationOptions(), **wrong).check()
    assert problem.startswith(f"{key}: ")
