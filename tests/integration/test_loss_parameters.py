"""What a method has to train is trained as the model is: at one rank and two, in every way to train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sslengine
from sslengine.config.resolve import resolve_dict
from sslengine.distributed.ranks import rank, world_size
from sslengine.engine import loop
from sslengine.engine.services import Services
from sslengine.engine.task import SelfSupervisionTask
from sslengine.errors import ConfigError
from sslengine.methods.base import Method, Multiplier, Step
from tests.config.recipes import recipe
from tests.engine.runs import make_task, train
from tests.engine.sharded import (
    SHARDED,
    SMALL_VIT,
    SYNC_BN,
    assert_close,
    needs_shards,
    on_ranks,
    run,
)
from tests.methods.resuming import assert_goes_on_bit_by_bit
from tests.python.toys import Points, batches, net, sgd, square
from tests.ranks import RankPool
from tests.tail import slow_but


class Predicting(Method):
    """A predictor and a temperature of its own. The mean over images, so ranks have equal parts."""

    def __init__(self, dim: int = 7, norm: bool = False, scalar: bool = False) -> None:
        super().__init__()
        layers = [nn.Linear(dim, 4), nn.BatchNorm1d(4) if norm else nn.Identity(), nn.ReLU()]
        self.predictor = nn.Sequential(*layers, nn.Linear(4, dim))
        self.temperature = nn.Parameter(torch.ones(() if scalar else (1,)))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, output: Tensor, sample: Any, step: Step) -> dict[str, Tensor]:
        assert output.dtype == torch.float32
        assert len(sample["input"]) == len(output)
        step.put("temperature", self.temperature.detach().sum())
        one, two = output.chunk(2)
        cosines = F.cosine_similarity(self.predictor(one), two.detach())
        loss = F.softplus(-cosines / self.temperature.exp()).mean()
        return {"loss": loss, "cosine": cosines.mean()}

    def multipliers(self) -> dict[str, Multiplier]:
        return {"*": Multiplier(weight_decay=0.5), "temperature": Multiplier(2.0, 0.0)}


class OfTwoArguments(nn.Module):
    """As any loss of torch.nn, Classy or VISSL."""

    def __init__(self, dim: int = 7) -> None:
        super().__init__()
        self.predictor = nn.Linear(dim, dim)

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        one, two = output.chunk(2)
        return -F.cosine_similarity(self.predictor(one), two.detach()).mean()


class OnOneRank(OfTwoArguments):
    """Its parameters are reached on rank 0 alone."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return super().forward(output, target) if rank() == 0 else output.square().mean()


def _of(loss: type, **arguments: Any) -> dict[str, Any]:
    return {**SMALL_VIT, "LOSS": {"name": f"{__name__}:{loss.__name__}", loss.__name__: arguments}}


ACCUMULATE = {"OPTIMIZER__accumulate": 2, "DATA__TRAIN__DATA_LIMIT": 32}
BF16 = {"MODEL__AMP_PARAMS": {"USE_AMP": True, "AMP_TYPE": "pytorch", "AMP_DTYPE": "bfloat16"}}
OPTIMIZERS = {
    name: {"parameters": [f"{name}*"], "losses": ["loss"], "name": "sgd",
           "param_schedulers": {"lr": {"name": "constant", "value": 0.1}}}
    for name in ("trunk", "heads", "loss")
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "find unused": {"DISTRIBUTED__FIND_UNUSED_PARAMETERS": True},
    "by hand": {"DISTRIBUTED__MANUAL_GRADIENT_REDUCTION": True},
    "accumulated": ACCUMULATE,
    "clipped": {"MODEL__GRAD_CLIP": {"USE_GRAD_CLIP": True, "MAX_NORM": 0.05}},
    "in chunks": {"TRAINER__TRAIN_STEP_NAME": "gradcache_train_step",
                  "TRAINER__gradcache_train_step": {"CHUNK_SIZE": 3}},
    "several optimizers": {"TRAINER": {"TRAIN_STEP_NAME": "multi_optimizer_train_step",
                                       "multi_optimizer_train_step": {"OPTIMIZERS": OPTIMIZERS}}},
    "bf16": BF16,
    "sync bn": {**SYNC_BN, **_of(Predicting, norm=True)},
    "loss of two arguments": _of(OfTwoArguments),
}  # fmt: skip
WAYS["compiled"] = {"MODEL__COMPILE": {"USE_COMPILE": True, "BACKEND": "aot_eager"}}
# What is tried in each run of the tests; the others in `make test-slow`.
OFTEN = ("accumulated", "sync bn")
IN_SHARDS = ("ddp", "accumulated", "clipped", "in chunks", "bf16", "loss of two arguments")


def _trained(folder: Path, ranks: RankPool, changes: dict[str, Any], **more: Any) -> None:
    """Two ranks end where one process with the whole batch does; all that is to be trained moved."""
    changes = {"OPTIMIZER__num_epochs": 1, **_of(Predicting), **changes}
    alone = run(folder, changes)
    half = "MODEL__AMP_PARAMS" in changes  # another batch shape: each product rounds to 8 bits
    # Weights are up to 1, and sums of ranks are rounded in another order: to five digits of that.
    close = {"rtol": 2e-2, "atol": 2e-3} if half else {"rtol": 1e-4, "atol": 1e-5}
    for each in ranks.run(run, folder, {**changes, **more}):
        assert_close(each, alone, **close)
    first = make_task(folder, [], **on_ranks(changes, 1)).loss
    kept = {name for name, value in first.state_dict().items()
            if torch.equal(value, alone.loss_state[name])}  # fmt: skip
    assert kept <= {"frozen"}


@pytest.mark.parametrize("way", slow_but(OFTEN, WAYS))
def test_ranks_end_where_one_process_does(two_ranks: RankPool, tmp_path: Path, way: str) -> None:
    _trained(tmp_path, two_ranks, WAYS[way])


@needs_shards
@pytest.mark.parametrize("way", slow_but(("clipped", "bf16"), IN_SHARDS))
def test_and_in_shards(two_ranks: RankPool, tmp_path: Path, way: str) -> None:
    _trained(tmp_path, two_ranks, WAYS[way], **SHARDED)


def test_a_parameter_that_one_rank_reaches(two_ranks: RankPool, tmp_path: Path) -> None:
    """Its mean over ranks, zero where it is not reached, moves it on all of them."""
    changes = {**_of(OnOneRank), **WAYS["find unused"]}
    one, two = two_ranks.run(run, tmp_path, changes)
    assert_close(one._replace(losses=two.losses), two, rtol=0, atol=0)
    first = make_task(tmp_path, [], **_of(OnOneRank)).loss.state_dict()
    assert not torch.equal(first["predictor.weight"], one.loss_state["predictor.weight"])


def _goes_on(folder: Path, changes: dict[str, Any]) -> None:
    given = {**_of(Predicting), **on_ranks(changes, world_size(), 4)}
    assert_goes_on_bit_by_bit(folder / str(rank()), **given)


@pytest.mark.parametrize("way", slow_but(["ddp"], ["ddp", "by hand", "bf16"]))
def test_a_run_that_goes_on(two_ranks: RankPool, tmp_path: Path, way: str) -> None:
    _goes_on(tmp_path / "alone", WAYS[way])
    two_ranks.run(_goes_on, tmp_path / "both", WAYS[way])


@needs_shards
def test_and_goes_on_in_shards(two_ranks: RankPool, tmp_path: Path) -> None:
    two_ranks.run(_goes_on, tmp_path, SHARDED)


def test_groups_of_the_optimizer(tmp_path: Path) -> None:
    """They follow the heads; their multipliers multiply."""
    heads = {"use_different_lr": True, "use_different_wd": True, "weight_decay": 0.3}
    lr = {name: {"name": "constant", "value": value} for name, value in
          (("lr", 0.1), ("lr_head", 0.4))}  # fmt: skip
    changes = {"OPTIMIZER__head_optimizer_params": heads, "OPTIMIZER__param_schedulers": lr,
               "OPTIMIZER__regularize_bias": True, **_of(Predicting)}  # fmt: skip
    task = make_task(tmp_path, [], **changes)
    names = {id(each): name for name, each in task.learner.named_parameters()}
    found = {names[id(p)]: (group["lr"], group["weight_decay"])
             for group in task.optimizer.param_groups for p in group["params"]}  # fmt: skip
    assert found["heads.0.clf.0.weight"] == (0.4, 0.3)
    assert found["loss.predictor.0.weight"] == pytest.approx((0.4, 0.15))
    assert found["loss.temperature"] == pytest.approx((0.8, 0.0))
    assert "loss.frozen" not in found


def test_frozen_by_name(tmp_path: Path) -> None:
    name = "loss.predictor.0.weight"
    task = train(tmp_path, [], **_of(Predicting), MODEL__NON_TRAINABLE_PARAMS=[name])
    first = make_task(tmp_path, [], **_of(Predicting))
    same = torch.equal(*(dict(each.learner.named_parameters())[name] for each in (task, first)))
    assert same
    assert not torch.equal(task.loss.temperature, first.loss.temperature)
    with pytest.raises(ConfigError, match="no parameter 'loss.predictr"):
        make_task(tmp_path, [], **_of(Predicting), MODEL__NON_TRAINABLE_PARAMS=["loss.predictr"])


def test_a_run_that_only_tests_trains_nothing(tmp_path: Path) -> None:
    tree = recipe(**_of(OfTwoArguments), TEST_ONLY=True, TEST_MODEL=True)
    tree["DATA"]["TEST"] = tree["DATA"]["TRAIN"]
    task = SelfSupervisionTask(
        resolve_dict(tree).config, tmp_path, torch.device("cpu"), None, [], Services()
    )
    task.prepare()
    before = [value.clone() for value in task.loss.parameters()]
    loop.run(task)
    assert all(map(torch.equal, before, task.loss.parameters()))


# ---- from Python


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return self.scale.exp() * square(output, target)

    def other(self, output: Tensor, target: Tensor) -> Tensor:
        return self(output, target)

    def with_sample(self, output: Tensor, sample: Any, step: Step) -> Tensor:
        return self(output, sample["target"])


FORMS = {"module": lambda loss: loss, "bound": lambda loss: loss.other,
         "bound, of three": lambda loss: loss.with_sample}  # fmt: skip


def _fit(form: str, with_loss: bool = True) -> list[Tensor]:
    model, loss = net(), Scaled()
    both = nn.ModuleList([model, loss]) if with_loss else model
    sslengine.fit(
        model,
        batches(Points()),
        loss=FORMS[form](loss),
        optimizer=sgd(both),
        epochs=2,
        device="cpu",
    )
    return [each.detach() for each in (*model.parameters(), loss.scale)]


def _plain() -> list[Tensor]:
    model, loss = net(), Scaled()
    optimizer = sgd(nn.ModuleList([model, loss]))
    for _ in range(2):
        for x, y in batches(Points()):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
    return [each.detach() for each in (*model.parameters(), loss.scale)]


@pytest.mark.parametrize("form", FORMS)
def test_from_python_as_a_plain_loop_does(form: str) -> None:
    torch.testing.assert_close(_fit(form), _plain(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("form", ["module", "bound"])
def test_an_optimizer_without_them_is_refused(form: str) -> None:
    with pytest.raises(ConfigError, match=r"parameters: loss\.(owner\.)?scale\. Pass them"):
        _fit(form, with_loss=False)


def test_an_optimizer_of_some_parameters_alone() -> None:
    model = net()
    with pytest.raises(ConfigError, match="parameters: 0.bias, 0.weight. Pass"):
        sslengine.fit(
            model, batches(Points()), loss=square, optimizer=sgd(model[3]), epochs=1, device="cpu"
        )
    model[0].requires_grad_(False)
    before = model[3].weight.clone()
    sslengine.fit(
        model, batches(Points()), loss=square, optimizer=sgd(model[3]), epochs=1, device="cpu"
    )
    assert not torch.equal(before, model[3].weight)
