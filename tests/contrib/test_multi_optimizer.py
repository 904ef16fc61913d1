"""Several losses and optimizers. References are plain loops over torch, in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.engine import loop
from sslengine.errors import ConfigError, TrainingError
from sslengine.hooks.gradients import FreezeParameters
from sslengine.python.fit import PythonTask
from tests.config.recipes import resolved
from tests.contrib.several import NAME, Gan, GanLoss, constant, of_run
from tests.engine.runs import Stop, Watch, make_task, same, train, weights
from tests.engine.tasks import Seen, at, begin
from tests.ranks import RankPool


@pytest.fixture(scope="module")
def two_ranks():  # type: ignore[no-untyped-def]
    with RankPool(2) as pool:
        yield pool


def images(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 3, generator=generator, dtype=torch.float64)


def make(
    optimizers: dict[str, dict[str, Any]],
    *hooks: Any,
    count: int = 20,
    loss: Any = None,
    **changes: Any,
) -> PythonTask:
    """Of a GAN, before the first of `count` batches."""
    changes |= {"TRAINER__TRAIN_STEP_NAME": NAME, f"TRAINER__{NAME}": {"OPTIMIZERS": optimizers}}
    batches = [{"data": images(seed)} for seed in range(count)]
    return begin(batches, Gan(), loss or GanLoss(), *hooks, **changes)


def sgd(parameters: list[str], losses: list[str], lr: float = 0.1, **more: Any) -> dict[str, Any]:
    return {
        "parameters": parameters, "losses": losses, "name": "sgd", "weight_decay": 0.0,
        "param_schedulers": constant(lr), **more,
    }  # fmt: skip


def grads(loss: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found)]


def equal(task: PythonTask, model: nn.Module, loss: nn.Module) -> None:
    for one, other in ((task.base_model, model), (task.loss, loss)):
        for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_a_gan_is_trained_as_a_plain_loop_trains_it() -> None:
    task = make({
        "generator": sgd(["trunk.*", "generator.*", "loss.*"], ["fool", "size"], 0.1),
        "critic": {"parameters": ["critic.*"], "losses": ["critic"], "name": "adam",
                   "betas": [0.5, 0.9], "weight_decay": 0.0, "args": {"foreach": False},
                   "param_schedulers": constant(0.02)},
    }, seen := Seen())  # fmt: skip
    model, loss = Gan(), GanLoss()
    mine = [*model.trunk.parameters(), *model.generator.parameters(), *loss.parameters()]
    theirs = list(model.critic.parameters())
    first = torch.optim.SGD(mine, lr=0.1, momentum=0.9, foreach=False)
    second = torch.optim.Adam(theirs, lr=0.02, betas=(0.5, 0.9), foreach=False)
    for owner in task.optimizer.owners:  # the plain form of each, to compare bit by bit
        for group in owner.optimizer.param_groups:
            group.update(fused=False, foreach=False)
    losses = []
    for number in range(20):
        task.step()
        parts = loss(model(images(number)), None)
        for parameters, value in ((mine, parts["fool"] + parts["size"]), (theirs, parts["critic"])):
            for parameter, grad in zip(parameters, grads(value, parameters)):
                parameter.grad = grad
        first.step()
        second.step()
        losses.append(parts["fool"].item())
        equal(task, model, loss)
    assert losses[0] > losses[-1]
    assert seen.events[:4] == ["on_forward", "on_loss_and_meter", "on_backward", "on_update"]


def test_what_is_frozen_by_rate_stays_while_its_owners_collect_moments() -> None:
    task = make({
        "one": sgd(["trunk.*", "generator.*"], ["size"], momentum=0.9),
        "two": sgd(["trunk.bias", "critic.*", "loss.*"], ["critic", "fool"], momentum=0.9),
    }, FreezeParameters([("trunk.bias", 2)], by_rate=True))  # fmt: skip
    bias, found = task.base_model.trunk.bias, []
    for _ in range(3):
        before = bias.detach().clone()
        task.step()
        moments = [
            each.optimizer.inner.state[bias]["momentum_buffer"] for each in task.optimizer.owners
        ]
        assert all(each.abs().sum() > 0 for each in moments)
        found.append(torch.equal(bias, before))
    assert found == [True, True, False]


def test_a_shared_parameter_gets_from_each_owner_its_own_losses_alone() -> None:
    task = make({
        "one": sgd(["trunk.*", "generator.*"], ["size"], 0.1),
        "two": sgd(["trunk.*", "critic.*", "loss.*"], ["critic", "fool"], 0.01, momentum=0.5),
        "three": sgd(["trunk.bias"], ["size"], 0.3),
    })  # fmt: skip
    model, loss = Gan(), GanLoss()
    trunk = list(model.trunk.parameters())
    owners = (
        ([*trunk, *model.generator.parameters()], ("size",), 0.1, 0.9),
        ([*trunk, *model.critic.parameters(), *loss.parameters()], ("critic", "fool"), 0.01, 0.5),
        ([model.trunk.bias], ("size",), 0.3, 0.9),
    )
    optimizers = [torch.optim.SGD(p, lr=lr, momentum=m, foreach=False) for p, _, lr, m in owners]
    for owner in task.optimizer.owners:
        for group in owner.optimizer.param_groups:
            group.update(fused=False, foreach=False)
    for number in range(20):
        task.step()
        parts = loss(model(images(number)), None)
        found = []
        for parameters, names, _, _ in owners:
            total = parts[names[0]] if len(names) == 1 else parts[names[0]] + parts[names[1]]
            found.append(grads(total, parameters))
        for optimizer, (parameters, *_), its in zip(optimizers, owners, found):
            for parameter, grad in zip(parameters, its):
                parameter.grad = grad
            optimizer.step()
        equal(task, model, loss)


def test_the_incomplete_last_group_is_applied_by_its_samples() -> None:
    optimizers = {"all": sgd(["*"], ["size", "fool", "critic"], momentum=0.0)}
    task = make(optimizers, count=3, OPTIMIZER__accumulate=2)
    model, loss = Gan(), GanLoss()
    both = [*model.parameters(), *loss.parameters()]
    for members in ((0, 1), (2,)):
        for _ in members:
            task.step()
        total = [torch.zeros_like(p) for p in both]
        for number in members:
            parts = loss(model(images(number)), None)
            value = parts["critic"] + parts["fool"] + parts["size"]
            for sum_, grad in zip(total, grads(value / len(members), both)):
                sum_ += grad
        with torch.no_grad():
            for parameter, grad in zip(both, total):
                parameter -= 0.1 * grad
        for ours, theirs in zip([*task.base_model.parameters(), *task.loss.parameters()], both):
            torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-15)
    assert task.progress.num_updates == 2


def test_each_clips_its_own_gradients() -> None:
    task = make({
        "one": sgd(["trunk.*", "generator.*"], ["size"], 1.0, momentum=0.0, clip_norm=0.01),
        "two": sgd(["trunk.*", "critic.*", "loss.*"], ["critic", "fool"], 0.0, momentum=0.0),
    })  # fmt: skip
    before = [p.clone() for p in task.base_model.parameters()]
    task.step()
    moved = [(p - q).flatten() for p, q in zip(task.base_model.parameters(), before)]
    assert torch.cat(moved).norm().item() == pytest.approx(0.01, rel=1e-4)


def test_hooks_see_gradients_and_may_freeze() -> None:
    found: list[Tensor] = []
    look = at("on_backward", lambda task: found.append(task.base_model.trunk.weight.grad.clone()))
    freeze = FreezeParameters([("trunk.weight", 1), ("critic.0.bias", 1)])
    task = make({
        "one": sgd(["trunk.*", "generator.*"], ["size"]),
        "two": sgd(["trunk.*", "critic.*", "loss.*"], ["critic", "fool"]),
    }, look, freeze)  # fmt: skip
    model: Any = task.base_model
    reference = Gan()
    parts = GanLoss()(reference(images(0)), None)
    (expected,) = grads(sum(parts.values()), [reference.trunk.weight])
    task.step()
    torch.testing.assert_close(found[0], expected, rtol=1e-12, atol=1e-14)
    assert torch.equal(model.trunk.weight, reference.trunk.weight)
    assert torch.equal(model.critic[0].bias, reference.critic[0].bias)
    assert not torch.equal(model.trunk.bias, reference.trunk.bias)


@pytest.mark.parametrize(
    ("optimizers", "text"),
    [
        ({}, r"multi_optimizer_train_step.OPTIMIZERS: expected one or more"),
        ({"a": sgd([], ["size"])}, r"OPTIMIZERS.a.parameters: expected patterns"),
        ({"a": sgd(["*"], [])}, r"OPTIMIZERS.a.losses: expected names of losses"),
        ({"a": sgd(["*"], ["size"], clip_norm=0.0)}, r"a.clip_norm: expected a number above 0"),
        ({"a": sgd(["*"], ["size"], use_zero=True)}, r"OPTIMIZERS.a.use_zero"),
        ({"a": sgd(["*"], ["size"], num_epochs=3)}, r"OPTIMIZERS.a.num_epochs: unknown key"),
        ({"a": sgd(["*"], ["size"], name="sdg")}, r"OPTIMIZERS.a.name: .*Did you mean 'sgd'"),
        ({"a": sgd(["*"], ["size"], weight_deca=1.0)}, r"OPTIMIZERS.a.weight_deca: unknown key. Did"),
        ({"a": sgd(["*", "trunc.*"], ["size"])},
         r"OPTIMIZERS.a.parameters: 'trunc"),
        ({"a": sgd(["trunk.*", "loss.*"], ["size"]), "b": sgd(["critic.*"], ["critic"])},
         r"no optimizer owns generator.0.bias, generator.0.weight"),
        ({"a": sgd(["*"], ["size"], name="adam", momentum=0.5, args={"alpha": 1})},
         r"OPTIMIZERS.a.args.alpha"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_by_name(optimizers: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make(optimizers)


def test_clipping_all_of_them_together_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"MODEL.GRAD_CLIP: .*<name>.clip_norm"):
        make({"a": sgd(["*"], ["size"])}, MODEL__GRAD_CLIP__USE_GRAD_CLIP=True)


@pytest.mark.parametrize(
    ("followed", "text"),
    [
        (["size", "critic", "foul"], r"OPTIMIZERS.a.losses: the loss returns no 'foul'.*'fool'"),
        (["size", "critic"], r"OPTIMIZERS: no optimizer minimises the loss 'fool'"),
    ],
)
def test_losses_that_do_not_fit(followed: list[str], text: str) -> None:
    task = make({"a": sgd(["*"], followed)})
    with pytest.raises(TrainingError, match=text):
        task.step()


def test_a_loss_that_is_only_logged_is_detached() -> None:
    inner = GanLoss()

    def loss(output: Any, target: Any) -> dict[str, Tensor]:
        parts = inner(output, target)
        return {name: part if name == "size" else part.detach() for name, part in parts.items()}

    make({"a": sgd(["*"], ["size"])}, seen := Seen(), loss=loss).step()
    (parts,) = seen.parts
    assert list(parts) == ["loss", "fool", "critic", "size"]
    assert parts["loss"] == parts["size"]


def test_learning_rates_scale_with_the_batch_for_each() -> None:
    run = of_run(DATA__TRAIN__BATCHSIZE_PER_REPLICA=8)
    scaled = {"auto_scale": True, "base_value": 0.1, "base_lr_batch_size": 16}
    run[f"TRAINER__{NAME}__OPTIMIZERS"]["fast"]["param_schedulers"]["lr"]["auto_lr_scaling"] = (
        scaled
    )
    entries = getattr(resolved(**run).config.TRAINER, NAME).OPTIMIZERS
    assert entries.fast.param_schedulers.lr.value == pytest.approx(0.05)
    assert entries.fast.param_schedulers.lr_head.value == pytest.approx(0.05)
    assert entries.slow.param_schedulers.lr.start_value == 0.05


def test_a_killed_run_goes_on_bit_by_bit(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", [Watch()], **of_run(OPTIMIZER__accumulate=3))
    watch: Any = whole.hooks[-1]
    broken = make_task(tmp_path / "cut", [Watch(stop_after=4)], **of_run(OPTIMIZER__accumulate=3))
    with pytest.raises(Stop):
        loop.run(broken)
    state = broken.get_classy_state(deep_copy=True)
    rest = make_task(tmp_path / "rest", [Watch()], **of_run(OPTIMIZER__accumulate=3))
    rest.set_classy_state(state)
    loop.run(rest)
    again: Any = rest.hooks[-1]
    assert watch.losses[4:] == again.losses
    assert same(weights(whole), weights(rest))
    assert torch.equal(whole.loss.scale, rest.loss.scale)  # type: ignore[arg-type]
    assert whole.optimizer.learning_rates().keys() == {"lr", "lr.slow", "lr.fast"}
    assert whole.loss.scale.item() != 1.5  # type: ignore[operator]


def _run(folder: Path, changes: dict[str, Any]) -> tuple[list[float], list[Tensor]]:
    watch = Watch()
    task = make_task(folder, [watch], **changes)
    loop.run(task)
    return watch.losses, [*task.base_model.parameters(), *task.loss.parameters()]


NO_NORM = {
    "MODEL__TRUNK__NAME": "vision_transformer",
    "MODEL__TRUNK__VISION_TRANSFORMERS": {
        "IMAGE_SIZE": 8, "PATCH_SIZE": 4, "NUM_LAYERS": 1, "NUM_HEADS": 1, "HIDDEN_DIM": 8,
        "MLP_DIM": 8, "CLASSIFIER": "token",
    },
    "MODEL__HEAD__PARAMS": [["mlp", {"dims": [8, 8]}]],
}  # fmt: skip


@pytest.mark.parametrize("accumulate", [1, 3])
def test_two_ranks_train_as_one(tmp_path: Path, two_ranks: RankPool, accumulate: int) -> None:
    common = {**NO_NORM, "OPTIMIZER__accumulate": accumulate,
              "DATA__TRAIN__COLLATE_FUNCTION": "default_collate",
              "DATA__TRAIN__TRANSFORMS": [{"name": "Resize", "size": 8}, {"name": "ToTensor"}]}  # fmt: skip
    alone, expected = _run(tmp_path / "one", of_run(**common))
    common |= {"DATA__TRAIN__BATCHSIZE_PER_REPLICA": 2, "DISTRIBUTED__NUM_PROC_PER_NODE": 2}
    (losses, ours), (others, same_) = two_ranks.run(_run, tmp_path / "two", of_run(**common))
    assert losses == others
    assert losses == pytest.approx(alone, rel=2e-5)
    for mine, theirs, reference in zip(ours, same_, expected, strict=True):
        assert torch.equal(mine, theirs)
        torch.testing.assert_close(mine, reference, rtol=1e-3, atol=2e-5)
