"""MSN against its formulas, at one rank and two, and beside the authors' code."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.config.facts import RunFacts
from sslengine.data.batch.masks import dropped_patches_collator
from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import DataError
from sslengine.methods.base import Step
from sslengine.methods.msn import MSNLoss, MSNOptions
from sslengine.methods.whole import Batch
from sslengine.models.build import build_model
from sslengine.models.options import (
    FeatureEvalOptions,
    HeadOptions,
    ModelOptions,
    TrunkOptions,
    VisionTransformerOptions,
    WeightsInitOptions,
)
from sslengine.models.view_trunk import lend
from sslengine.models.weights.load import init_weights
from tests.methods.resuming import assert_goes_on_bit_by_bit
from tests.methods.whole_steps import wave

CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
IMAGES, PIXELS, WIDTH, PROTOTYPES = 4, 6, 5, 7
WEIGHTS = {"cross_entropy": 1.0, "me_max": 0.7, "entropy": 0.2}


# ---- the formulas


class Toy(nn.Module):
    """A trunk whose class token is the image."""

    width = PIXELS

    def take(self, name: str) -> None:
        assert name == "shown"

    def forward(self, images: Tensor, maps: list[str], shown: Any = None) -> dict[str, Tensor]:
        assert maps == ["lastCLS"]
        return {"lastCLS": images}


class Projection(nn.Module):
    """In place of the head."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(wave((PIXELS, WIDTH), 1))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def loss_of_toy(**changes: Any) -> Any:
    more = {"me_max_weight": 0.7, "entropy_weight": 0.2, **changes}
    options = MSNOptions(num_prototypes=PROTOTYPES, output_dim=WIDTH, **more)
    method: Any = MSNLoss(options, Toy()).double()  # type: ignore[arg-type]
    method.student.head = Projection()
    method.teacher.attach(method.student)
    with torch.no_grad():
        method.prototypes.weight.copy_(wave((PROTOTYPES, WIDTH), 2))
        method.teacher.module.head.weight.copy_(wave((PIXELS, WIDTH), 3))
    return method


def toy_batch(mine: slice = slice(None)) -> Batch:
    def views(name: str, count: int) -> list[Tensor]:
        return [*wave((count, IMAGES, PIXELS), 4 + count + len(name))[:, mine]]

    return Batch({
        "input": views("target_views", 1)[0], "random_views": views("random_views", 1),
        "focal_views": views("focal_views", 2), "shown": torch.zeros(1),
    })  # fmt: skip


def published(method: Any, iterations: int) -> dict[str, Tensor]:
    """Of all images, row by row."""
    inputs, c, head = toy_batch().sample, method.prototypes.weight, method.student.head

    def probabilities(row: Tensor) -> Tensor:
        cosines = [(row @ each) / (row.norm() * each.norm()) for each in c]
        powers = torch.stack([(value / 0.1).exp() for value in cosines])
        return powers / powers.sum()

    with torch.no_grad():
        q = []
        for row in method.teacher.module.head(inputs["input"]):
            sharp = probabilities(row) ** 4
            q.append((sharp / sharp.sum()).tolist())
    samples, every = range(IMAGES), range(PROTOTYPES)
    for _ in range(iterations):
        sums = [sum(q[b][k] for b in samples) for k in every]
        q = [[q[b][k] / sums[k] / PROTOTYPES for k in every] for b in samples]
        q = [[value / sum(row) / IMAGES for value in row] for row in q]
        q = [[value * IMAGES for value in row] for row in q]
    views = *inputs["random_views"], *inputs["focal_views"]
    anchors = [probabilities(row) for each in views for row in head(each)]
    crossed = [
        -sum(q[number % IMAGES][k] * p[k].log() for k in every) for number, p in enumerate(anchors)
    ]
    mean = sum(anchors) / len(anchors)
    made: dict[str, Any] = {
        "cross_entropy": sum(crossed) / len(crossed),
        "me_max": math.log(PROTOTYPES) + (mean * mean.log()).sum(),
        "entropy": sum(-(p * p.log()).sum() for p in anchors) / len(anchors),
    }
    return {**made, "loss": sum(WEIGHTS[name] * each for name, each in made.items())}


def of_rank(iterations: int) -> tuple[dict[str, Tensor], list[Tensor]]:
    method = loss_of_toy(sinkhorn_iterations=iterations)
    share = IMAGES // world_size()
    losses = method(toy_batch(slice(rank() * share, (rank() + 1) * share)), Step.alone())
    gradients = [*torch.autograd.grad(losses["loss"], trained_of(method))]
    return {name: each.detach() for name, each in losses.items()}, gradients


def trained_of(method: Any) -> list[Tensor]:
    return [method.student.head.weight, method.prototypes.weight]


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("iterations", [0, 3])
def test_value_and_gradient(iterations: int, ranks: int, request: pytest.FixtureRequest) -> None:
    pools = {2: "two_ranks", 4: "four_ranks"}
    made = (
        request.getfixturevalue(pools[ranks]).run(of_rank, iterations)
        if ranks > 1
        else [of_rank(iterations)]
    )
    method = loss_of_toy()
    expected = published(method, iterations)
    for name, value in expected.items():
        mean = torch.stack([losses[name] for losses, _ in made]).mean()
        torch.testing.assert_close(mean, value.detach(), **CLOSE)
    for number, wanted in enumerate(torch.autograd.grad(expected["loss"], trained_of(method))):
        mean = torch.stack([gradients[number] for _, gradients in made]).mean(0)
        torch.testing.assert_close(mean, wanted, **CLOSE)


# ---- the authors' code

# Four steps of facebookresearch/msn at commit 4388dc1 (`init_msn_loss`, `VisionTransformer`, the step
# of msn_train.py, in float64) with SGD and its schedule of the momentum; positions are zero and not
# trained, since timm and the authors interpolate them differently. Without Sinkhorn-Knopp, and with:
# cross entropy, me-max and entropy of each step; at the end the squared norms of encoder, target
# encoder and prototypes.
OFFICIAL: dict[int, tuple[list[list[float]], list[float]]] = {
    0: (
        [[5.323240696931625, 0.45063631198486775, 0.7855856063475173],
         [4.75166441542394, 0.9708965520611728, 0.8048853167675466],
         [0.6804362831370759, 0.9818940638432121, 0.798926906750601],
         [0.6372121044022717, 0.9477623696797137, 0.8303881966429006]],
        [294.3842618160179, 149.58401357090477, 14.613797907443065],
    ),
    3: (
        [[6.528291473333677, 0.45063631198486775, 0.7855856063475173],
         [5.448134466041146, 0.741047517530635, 1.0211701534065607],
         [5.41490097597822, 0.724623270151382, 1.0295328097446765],
         [5.675681358926183, 0.7072468769597287, 1.0587782664612593]],
        [257.2499808638208, 146.05008022259472, 14.616145094779023],
    ),
}  # fmt: skip
LENGTH = 10
VIT = {"IMAGE_SIZE": 16, "PATCH_SIZE": 4, "NUM_LAYERS": 2, "NUM_HEADS": 2, "HIDDEN_DIM": 8,
       "MLP_DIM": 16, "QKV_BIAS": True}  # fmt: skip
LAYERS = {"0": "fc1", "1": "bn1", "3": "fc2", "4": "bn2", "6": "fc3"}


def official(iterations: int) -> tuple[Any, Any]:
    """The model and the method."""
    trunk = VisionTransformerOptions(**VIT)  # type: ignore[arg-type]
    given = ModelOptions(
        TRUNK=TrunkOptions("vision_transformer", VISION_TRANSFORMERS=trunk),
        HEAD=HeadOptions(PARAMS=[]),
    )
    model: Any = build_model(given)
    options = MSNOptions(
        num_prototypes=6, output_dim=5, head={"hidden_dim": 7}, sinkhorn_iterations=iterations,
        me_max_weight=0.7, entropy_weight=0.2, momentum=0.9, momentum_end=0.98,
    )  # fmt: skip
    method: Any = MSNLoss(options, lend(model, given)).double()
    model = model.double()
    parts = *model.trunk.named_parameters(), *method.student.head.named_parameters("head")
    with torch.no_grad():
        for name, each in parts:
            if name.startswith("head.mlp."):
                number, of = name.removeprefix("head.mlp.").split(".")
                name = f"fc.{LAYERS[number]}.{of}"
            norm = ("norm" in name or "bn" in name) and name.endswith("weight")
            value = 0.3 * wave(tuple(each.shape), sum(map(ord, name)) % 17)
            each.copy_(value + (1.0 if norm else 0.0))
        model.trunk.pos_embed.zero_()
    model.trunk.pos_embed.requires_grad_(False)
    method.teacher.attach(model)
    return model.train(), method.train()


def squares(part: Any) -> float:
    return sum(float(each.detach().square().sum()) for each in part)


@pytest.mark.parametrize("iterations", OFFICIAL)
def test_four_steps(iterations: int) -> None:
    model, method = official(iterations)
    prototypes = method.prototypes.weight
    prototypes.data.copy_(wave((6, 5), 2))
    networks = [*model.parameters(), *method.student.parameters()]
    trained = [each for each in (*networks, prototypes) if each.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    steps, at_end = OFFICIAL[iterations]
    for number, expected in enumerate(steps):
        shown = ((torch.arange(16) * 5 + 3 + number) % 16)[:13].expand(4, -1)
        focal = [wave((4, 3, 8, 8), 9 + number), wave((4, 3, 8, 8), 13 + number)]
        batch = Batch({
            "input": wave((4, 3, 16, 16), 1 + number),
            "random_views": [wave((4, 3, 16, 16), 5 + number)], "focal_views": focal, "shown": shown,
        })  # fmt: skip
        step = Step.alone(iteration=number, where=number / LENGTH)
        losses = method(batch, step)
        got = [losses[name].item() for name in WEIGHTS]
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
        optimizer.zero_grad()
        losses["loss"].backward()
        optimizer.step()
        method.teacher.after_update(step)
    parts = (networks, method.teacher.parameters(), [prototypes])
    torch.testing.assert_close([*map(squares, parts)], at_end, rtol=1e-8, atol=0)


# ---- whole runs


def of_run(**options: Any) -> dict[str, Any]:
    crops = {"name": "ImgPilToMultiCrop", "total_num_crops": 3, "size_crops": [16, 8],
             "num_crops": [2, 1], "crop_scales": [[0.5, 1.0], [0.2, 0.5]]}  # fmt: skip
    return {
        "DATA__TRAIN__TRANSFORMS": [crops, {"name": "ToTensor"}],
        "DATA__TRAIN__COLLATE_FUNCTION": "dropped_patches_collator",
        "DATA__TRAIN__COLLATE_FUNCTION_PARAMS": {"patch_size": 4},
        "MODEL__TRUNK": {"NAME": "vision_transformer", "VISION_TRANSFORMERS": VIT},
        "MODEL__HEAD__PARAMS": [],
        "LOSS": {
            "name": "msn_loss",
            "msn_loss": {
                "num_prototypes": 6,
                "output_dim": 5,
                "head": {"hidden_dim": 8},
                **options,
            },
        },
    }


def test_resumes_to_the_bit(tmp_path: Path) -> None:
    task = assert_goes_on_bit_by_bit(tmp_path, **of_run(), OPTIMIZER__weight_decay=0.1)
    decays = {
        id(each): group["weight_decay"]
        for group in task.optimizer.param_groups
        for each in group["params"]
    }
    assert decays[id(task.loss.prototypes.weight)] == 0.0
    assert decays[id(task.base_model.trunk.patch_embed.proj.weight)] == 0.1


# ---- which patches


def samples(count: int, large: int = 3) -> list[dict[str, Any]]:
    sides = [16] * large + [8, 8]
    return [
        {"data": [torch.full((3, side, side), 10.0 * view + number) for view, side in enumerate(sides)],
         "data_idx": [number] * len(sides)}
        for number in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("same", [False, True])
def test_patches_are_dropped_from_random_views(same: bool) -> None:
    batch = dropped_patches_collator(samples(4), patch_size=4, dropped=0.3, same=same)
    targets, views, focal, shown = (
        batch[key][0] for key in ("target_views", "random_views", "focal_views", "shown")
    )
    assert targets[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert [each[:, 0, 0, 0].tolist() for each in views] == [[10, 11, 12, 13], [20, 21, 22, 23]]
    assert [each[:, 0, 0, 0].tolist() for each in focal] == [[30, 31, 32, 33], [40, 41, 42, 43]]
    assert shown.shape == (8, 11)
    assert all(len(set(row)) == 11 and 0 <= min(row) <= max(row) < 16 for row in shown.tolist())
    assert len({tuple(row) for row in shown.tolist()}) == (2 if same else 8)


# ---- VISSL's head


@pytest.mark.parametrize(("query", "bn"), [(True, True), (False, True), (False, False)])
def test_weights_of_vissls_head(query: bool, bn: bool, tmp_path: Path) -> None:
    """Its names and its output: the query, or shares of the prototypes."""
    arguments = {"in_dim": 8, "hidden_dim": 7, "output_dim": 5, "num_prototypes": 6, "use_bn": bn}
    trunk = VisionTransformerOptions(**VIT)  # type: ignore[arg-type]
    model: Any = build_model(ModelOptions(
        TRUNK=TrunkOptions("vision_transformer", VISION_TRANSFORMERS=trunk),
        HEAD=HeadOptions(PARAMS=[["msn_head", {**arguments, "return_query": query}]]),
    )).eval()  # fmt: skip
    fc = nn.Sequential()
    for number, (inputs, outputs) in enumerate(((8, 7), (7, 7), (7, 5)), 1):
        fc.add_module(f"fc{number}", nn.Linear(inputs, outputs))
        if number < 3:
            if bn:
                fc.add_module(f"bn{number}", nn.BatchNorm1d(outputs).requires_grad_(False))
                fc[-1].running_mean.fill_(0.1)
            fc.add_module(f"gelu{number}", nn.GELU())
    prototypes = wave((6, 5), 3).float()
    file = tmp_path / "vissl.torch"
    heads = {f"0.fc.{name}": each for name, each in fc.state_dict().items()}
    state = {"trunk": model.trunk.state_dict(), "heads": {**heads, "0.prototypes": prototypes}}
    torch.save({"classy_state_dict": {"base_model": {"model": state}}}, file)
    init_weights(model, ModelOptions(
        WEIGHTS_INIT=WeightsInitOptions(PARAMS_FILE=str(file)),
        FEATURE_EVAL_SETTINGS=FeatureEvalOptions(EVAL_MODE_ON=True, EVAL_TRUNK_AND_HEAD=True),
    ))  # fmt: skip
    feature = wave((4, 8), 2).float()
    expected = fc.eval()(feature)
    expected = expected / expected.square().sum(1, keepdim=True).sqrt()
    if not query:
        scores = expected @ (prototypes / prototypes.square().sum(1, keepdim=True).sqrt()).T / 0.1
        expected = scores.exp() / scores.exp().sum(1, keepdim=True)
    torch.testing.assert_close(model.heads[0](feature), expected, rtol=1e-5, atol=1e-6)
    assert model.heads[0].prototypes.requires_grad is not query


# ---- what does not fit


def test_what_is_refused() -> None:
    with pytest.raises(DataError, match="needs two views of the largest size"):
        dropped_patches_collator(samples(2, large=1), patch_size=4)
    with pytest.raises(DataError, match="share dropped from 0 to below 1, got 1"):
        dropped_patches_collator(samples(2), patch_size=4, dropped=1.0)


@pytest.mark.parametrize("prototypes", [0, 9])
def test_the_head_of_earlier_yaml(prototypes: int) -> None:
    """And of VISSL's, which has the prototypes."""
    head = {"in_dim": "auto", "output_dim": 9, "use_bn": False, "num_prototypes": prototypes}
    options = MSNOptions()
    options.infer(RunFacts(heads=(("msn_head", head),)))
    found = options.output_dim, options.num_prototypes, options.head
    assert found == (9, prototypes or 1024, {"use_bn": False})
