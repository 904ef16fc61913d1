"""iBOT and DINOv2 against their formulas, term by term in float64, at 1, 2 and 4 ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.config.facts import RunFacts
from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import TrainingError
from sslengine.losses.koleo import koleo
from sslengine.methods.base import Step
from sslengine.methods.dinov2 import DINOv2Loss, DINOv2Options
from sslengine.methods.ibot import IBOTLoss, IBOTOptions
from sslengine.registry import LOSSES
from tests.ranks import RankPool

CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
IMAGES, PATCHES, WIDTH, SCORES, OTHER = 4, 4, 6, 5, 7


def _draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Toy(nn.Module):
    """Scores of tokens, as a model with two heads returns them; hidden patches are another token."""

    def __init__(self) -> None:
        super().__init__()
        self.classes, self.patches = (
            nn.Parameter(_draw(WIDTH, k, seed=k)) for k in (SCORES, OTHER)
        )
        self.hidden = nn.Parameter(_draw(WIDTH, seed=1))

    def forward(self, inputs: Mapping[str, Tensor]) -> list[Any]:
        tokens = inputs["global_views"]
        cls, patches = tokens[:, 0], tokens[:, 1:]
        if "mask" in inputs:
            patches = torch.where(inputs["mask"].flatten(1).unsqueeze(-1), self.hidden, patches)
            cls = cls + patches.mean(1)
        if "patches_at" in inputs:
            patches = patches.flatten(0, 1)[inputs["patches_at"]]
        outputs: list[Any] = [[cls @ self.classes, patches @ self.patches, cls]]
        if "local_views" in inputs:
            outputs.append(inputs["local_views"] @ self.classes)
        return outputs if len(outputs) > 1 else outputs[0]


def toy_inputs(mine: slice = slice(None), bare: bool = False) -> dict[str, Tensor]:
    """Two global views and two local ones; the last image of the first view has no hidden patch.

    bare: nor have both views of the second half of the images.
    """
    mask = _draw(2, IMAGES, 2, 2, seed=3) > 0.2
    mask[0, -1] = False
    mask[1, 0] = True
    if bare:
        mask[:, IMAGES // 2 :] = False
    mask = mask[:, mine].flatten(0, 1)
    return {
        "global_views": _draw(2, IMAGES, 1 + PATCHES, WIDTH, seed=4)[:, mine].flatten(0, 1),
        "local_views": _draw(2, IMAGES, WIDTH, seed=5)[:, mine].flatten(0, 1),
        "mask": mask,
        "patches_at": mask.flatten().nonzero().flatten(),
    }


def _loss(method: str, **changes: Any) -> tuple[IBOTLoss, Toy]:
    of = {"output_dim": SCORES, "patch_output_dim": OTHER, "num_crops": 4,
          "teacher_temp_warmup_iters": 0, "teacher_temp_max": 0.5, "patch_temp_max": 0.8}  # fmt: skip
    options = (IBOTOptions if method == "ibot" else DINOv2Options)(**{**of, **changes})
    loss, model = LOSSES.get(f"{method}_loss")(options, RunFacts()).double(), Toy()
    loss.teacher.attach(model)
    with torch.no_grad():
        for number, each in enumerate(loss.teacher.module.parameters()):
            each.copy_(_draw(*each.shape, seed=10 + number))
        loss.class_center.center.copy_(_draw(1, SCORES, seed=20))
        loss.patch_center.center.copy_(_draw(1, OTHER, seed=21))
    return loss, model


# ---- the formulas


def _softmax(row: Tensor, temperature: float) -> list[Tensor]:
    powers = [(value / temperature).exp() for value in row]
    return [each / sum(powers) for each in powers]


def _cross(p: Any, scores: Tensor) -> Tensor:
    q = _softmax(scores, 0.1)
    return -sum(p[k] * q[k].log() for k in range(len(q)))


def _assigned(scores: Tensor, temperature: float, iterations: int) -> list[list[float]]:
    """Every prototype gets an equal share of the samples, every sample a distribution."""
    q = [[math.exp(float(value.detach()) / temperature) for value in row] for row in scores]
    samples, prototypes = range(len(q)), range(len(q[0]))
    for _ in range(iterations):
        sums = [sum(q[b][k] for b in samples) for k in prototypes]
        q = [[q[b][k] / sums[k] / len(prototypes) for k in prototypes] for b in samples]
        q = [[value / sum(row) / len(samples) for value in row] for row in q]
    return [[value * len(samples) for value in row] for row in q]


def _koleo(rows: Tensor) -> Tensor:
    unit = [row / row.square().sum().sqrt() for row in rows]
    total = torch.zeros((), dtype=torch.float64)
    for i, row in enumerate(unit):
        others = [j for j in range(len(unit)) if j != i]
        nearest = max(others, key=lambda j: float((row @ unit[j]).detach()))
        total = total - ((row - unit[nearest] + 1e-8).square().sum().sqrt() + 1e-8).log()
    return total / len(unit)


def _expected(
    loss: IBOTLoss, model: Toy, targets: str = "center", bare: bool = False
) -> dict[str, Tensor]:
    """Of all images in one process."""
    inputs = toy_inputs(bare=bare)
    (student, _, cls), local = model(
        {key: each for key, each in inputs.items() if key != "patches_at"}
    )
    patches = model({"global_views": inputs["global_views"], "mask": inputs["mask"]})[1]
    teacher, teacher_patches, _ = loss.teacher.module({"global_views": inputs["global_views"]})
    hidden = [
        (row, j)
        for row, of in enumerate(inputs["mask"].flatten(1))
        for j in range(PATCHES)
        if of[j]
    ]
    if targets == "center":
        p = [_softmax(row - loss.class_center.center[0], 0.5) for row in teacher]
        p_hidden = {
            at: _softmax(teacher_patches[at] - loss.patch_center.center[0], 0.8) for at in hidden
        }
    else:
        p = _assigned(teacher, 0.5, 3)
        rows = torch.stack([teacher_patches[at] for at in hidden])
        p_hidden = dict(zip(hidden, _assigned(rows, 0.8, 3), strict=True))
    views = [*student.chunk(2), *local.chunk(2)]
    classes = [_cross(p[u * IMAGES + i], views[v][i])
               for i in range(IMAGES) for u in range(2) for v in range(4) if v != u]  # fmt: skip
    of_views = []
    for row in range(2 * IMAGES):
        each = [_cross(p_hidden[row, j], patches[row, j]) for at, j in hidden if at == row]
        of_views.append(sum(each) / max(1, len(each)))
    return {
        "classes": sum(classes) / len(classes),
        "patches": sum(of_views) / len(of_views),
        "koleo": sum(map(_koleo, cls.chunk(2))),
    }


CASES = {
    "ibot": ("ibot", {"class_weight": 0.7, "patch_weight": 1.3}, {"classes": 0.7, "patches": 1.3}),
    "center": ("dinov2", {}, {"classes": 1, "patches": 1, "koleo": 0.1}),
    "sinkhorn": ("dinov2", {"targets": "sinkhorn", "koleo_weight": 0.3, "koleo_over_ranks": True},
                 {"classes": 1, "patches": 1, "koleo": 0.3}),
    "no koleo": ("dinov2", {"koleo_weight": 0.0}, {"classes": 1, "patches": 1}),
    # Of several ranks, half have no hidden patch.
    "bare ibot": ("ibot", {}, {"classes": 1, "patches": 1}),
    "bare sinkhorn": ("dinov2", {"targets": "sinkhorn", "koleo_weight": 0.0},
                      {"classes": 1, "patches": 1}),
}  # fmt: skip


def _gradients(value: Any, model: Toy) -> list[Tensor]:
    return list(torch.autograd.grad(value, [*model.parameters()]))


def _check(name: str, made: list[Any], loss: IBOTLoss, model: Toy) -> None:
    """made: of each rank losses, gradients and centres."""
    _, changes, weights = CASES[name]
    expected = _expected(loss, model, changes.get("targets", "center"), "bare" in name)
    expected = {key: expected[key] for key in weights}
    total = sum(weights[key] * value for key, value in expected.items())
    for key, value in {**expected, "loss": total}.items():
        mean = torch.stack([losses[key] for losses, _, _ in made]).mean()
        torch.testing.assert_close(mean, value.detach(), **CLOSE)
    for number, gradient in enumerate(_gradients(total, model)):
        mean = torch.stack([gradients[number] for _, gradients, _ in made]).mean(0)
        torch.testing.assert_close(mean, gradient, **CLOSE)


def _run(name: str) -> tuple[Any, IBOTLoss, Toy]:
    method, changes, _ = CASES[name]
    loss, model = _loss(method, **changes)
    share = IMAGES // world_size()
    inputs = toy_inputs(slice(rank() * share, (rank() + 1) * share), "bare" in name)
    losses = loss(model(inputs), {"input": inputs}, Step.alone())
    gradients = _gradients(losses["loss"], model)
    centers = [loss.class_center.center, loss.patch_center.center]
    return ({key: each.detach() for key, each in losses.items()}, gradients, centers), loss, model


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name: str) -> None:
    made, _, model = _run(name)
    before, _ = _loss(*CASES[name][:1], **CASES[name][1])
    _check(name, [made], before, model)


@pytest.mark.parametrize("pool", [2, pytest.param(4, marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize("name", ["ibot", "sinkhorn", "bare ibot", "bare sinkhorn"])
def test_ranks_are_one_process(name: str, pool: RankPool) -> None:
    """Ranks have unlike numbers of hidden patches; some have none."""
    loss, model = _loss(CASES[name][0], **CASES[name][1])
    counts = [
        len(toy_inputs(each, "bare" in name)["patches_at"]) for each in (slice(0, 2), slice(2, 4))
    ]
    assert counts[0] != counts[1]
    assert (counts[1] == 0) == ("bare" in name)
    _check(name, pool.run(_of_rank, name), loss, model)


def _of_rank(name: str) -> Any:
    return _run(name)[0]


@pytest.mark.parametrize("name", ["ibot", "center", "sinkhorn"])
def test_centres_are_means_over_all_ranks(name: str, two_ranks: RankPool) -> None:
    """iBOT: of all patches of the teacher; DINOv2: of the hidden ones. Sinkhorn-Knopp needs none."""
    loss, _ = _loss(CASES[name][0])
    inputs = toy_inputs()
    teacher, patches, _ = loss.teacher.module({"global_views": inputs["global_views"]})
    rows = patches.flatten(0, 1)
    rows = rows if name == "ibot" else rows[inputs["patches_at"]]
    share = 0.0 if name == "sinkhorn" else 0.1
    expected = [
        (1 - share) * center.center + share * each.mean(0)
        for center, each in ((loss.class_center, teacher), (loss.patch_center, rows))
    ]
    for made in ([_run(name)[0]], two_ranks.run(_of_rank, name)):
        for _, _, centers in made:
            torch.testing.assert_close(centers, expected, **CLOSE)


def test_without_local_views_and_without_hidden_patches() -> None:
    loss, model = _loss("dinov2", num_crops=2)
    inputs = {key: each for key, each in toy_inputs().items() if key != "local_views"}
    inputs |= {"mask": torch.zeros_like(inputs["mask"]), "patches_at": inputs["patches_at"][:0]}
    centers = loss.patch_center.center.clone()
    losses = loss(model(inputs), {"input": inputs}, Step.alone())
    losses["loss"].backward()
    assert losses["patches"] == 0
    assert torch.isfinite(losses["loss"])
    assert torch.equal(loss.patch_center.center, centers)


@pytest.mark.parametrize(
    ("done", "expected"), [(0, (0.04, 0.04)), (2, (0.05, 0.06)), (9, (0.06, 0.08))]
)
def test_temperatures_rise(done: int, expected: tuple[float, float]) -> None:
    keys = {"teacher_temp_max": 0.06, "patch_temp_max": 0.08}
    for options, step in (
        (IBOTOptions(**keys, teacher_temp_warmup_iters=5), Step.alone(iteration=done)),
        (IBOTOptions(**keys, teacher_temp_warmup_epochs=5), Step.alone(epoch=done, iteration=99)),
    ):
        assert options.temperatures(step) == pytest.approx(expected)


def test_the_warm_up_counts_updates() -> None:
    options = IBOTOptions(teacher_temp_warmup_iters=3, patch_temp_max=0.08)
    steps = [Step.alone(iteration=2 * number, num_updates=number) for number in range(4)]
    of_patches = [options.temperatures(step)[1] for step in steps]
    assert of_patches == pytest.approx([0.04, 0.06, 0.08, 0.08])


def test_koleo_of_equal_rows_and_of_a_single_one() -> None:
    equal = torch.ones(4, 3, requires_grad=True)
    value = koleo(equal)
    assert torch.isfinite(value)
    assert value > 15
    single = torch.ones(1, 3, requires_grad=True)
    koleo(single).backward()
    assert koleo(single) == 0
    assert single.grad is not None
    assert not single.grad.any()


def _facts(**changes: Any) -> RunFacts:
    heads = tuple(("dino_head", {"num_clusters": [k]}) for k in (12, 34))
    return RunFacts(
        **{"views_per_image": 6, "heads": heads, "collator": "spread_masks_collator", **changes}
    )


def test_options_follow_the_run() -> None:
    options = DINOv2Options()
    options.infer(_facts())
    assert (options.output_dim, options.patch_output_dim, options.num_crops) == (12, 34, 6)


def test_batches_and_outputs_that_do_not_fit() -> None:
    loss, model = _loss("dinov2")
    inputs = toy_inputs()
    output = model(inputs)
    for given, of, message in (
        (output[0][0], inputs, "needs class scores and patch scores"),
        ([output[0][:2], output[1]], inputs, "koleo_weight is above 0, but"),
        ([output[0], output[1][:3]], inputs, "4 views of every image"),
    ):
        with pytest.raises(TrainingError, match=message):
            loss(given, {"input": of}, Step.alone())
    assert isinstance(loss, DINOv2Loss)
