"""iBOT and DINOv2 against their formulas, term by term in float64, at 1, 2 and 4 ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.config.facts import RunFacts
from sslengine.distributed.ranks import rank, world_size
from sslengine.engine import loop
from sslengine.losses.koleo import koleo
from sslengine.methods.base import Step
from sslengine.methods.dinov2 import DINOv2Options
from sslengine.methods.ibot import IBOTOptions
from sslengine.methods.whole import Batch
from sslengine.registry import LOSSES
from tests.engine.runs import make_task
from tests.ranks import RankPool

CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
IMAGES, PATCHES, WIDTH, SCORES, OTHER = 4, 4, 6, 5, 7


def _draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class ToyTrunk(nn.Module):
    """Images are tokens; those of hidden patches are another token."""

    width = WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Parameter(_draw(WIDTH, seed=1))

    @property
    def trunk(self) -> nn.Module:
        return nn.Identity()

    def take(self, name: str) -> None:
        assert name == "mask"

    def forward(
        self, tokens: Tensor, maps: Sequence[str], mask: Any = None, patches_at: Any = None
    ) -> dict[str, Tensor]:
        cls, patches = tokens[:, 0], tokens[:, 1:]
        if mask is not None:
            patches = torch.where(mask.flatten(1).unsqueeze(-1), self.hidden, patches)
            cls = cls + patches.mean(1)
        found = {"lastCLS": cls, "lastBLK": torch.cat([cls.unsqueeze(1), patches], dim=1),
                 "lastPATCH": patches if patches_at is None else patches.flatten(0, 1)[patches_at]}  # fmt: skip
        return {name: found[name] for name in maps}


def toy_batch(mine: slice = slice(None), bare: bool = False) -> Batch:
    """Two global views and two local ones; the last image of the first view has no hidden patch.

    bare: nor have both views of the second half of the images.
    """
    mask = _draw(2, IMAGES, 2, 2, seed=3) > 0.2
    mask[0, -1] = False
    mask[1, 0] = True
    if bare:
        mask[:, IMAGES // 2 :] = False
    mask = mask[:, mine].flatten(0, 1)
    return Batch({
        "input": [*_draw(2, IMAGES, 1 + PATCHES, WIDTH, seed=4)[:, mine]],
        "local_views": [*_draw(2, IMAGES, 1, WIDTH, seed=5)[:, mine]],
        "mask": mask, "patches_at": mask.flatten().nonzero().flatten(),
    })  # fmt: skip


OF_TOY: dict[str, Any] = {
    "output_dim": SCORES, "patch_output_dim": OTHER,
    "head": {"num_layers": 1, "bottleneck_dim": 3}, "patch_head": {"bottleneck_dim": 4},
}  # fmt: skip


def filled(loss: Any) -> Any:
    """Give each parameter and each centre its numbers."""
    loss = loss.double()
    with torch.no_grad():
        for number, each in enumerate((*loss.student.parameters(), *loss.teacher.parameters())):
            each.copy_(_draw(*each.shape, seed=number))
        for number, center in enumerate((loss.class_center.center, loss.patch_center.center)):
            center.copy_(0.3 * _draw(*center.shape, seed=20 + number))
    return loss


def _loss(method: str, **changes: Any) -> Any:
    warm = {"teacher_temp_warmup_iters": 0, "teacher_temp_max": 0.5, "patch_temp_max": 0.8}
    options = (IBOTOptions if method == "ibot" else DINOv2Options)(**{**OF_TOY, **warm, **changes})
    return filled(LOSSES.get(f"{method}_loss")(options, ToyTrunk()))


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


def _scores(network: Any, views: list[Tensor], **inputs: Tensor) -> tuple[Tensor, ...]:
    """Scores of class tokens and of all patches, and class tokens."""
    tokens = network.trunk(torch.cat(views), ["lastCLS", "lastPATCH"], **inputs)
    patches = (network.patch_head or network.head)(tokens["lastPATCH"])
    return network.head(tokens["lastCLS"]), patches, tokens["lastCLS"]


def _expected(loss: Any, targets: str = "center", bare: bool = False) -> dict[str, Tensor]:
    """Of all images in one process."""
    inputs = toy_batch(bare=bare).sample
    student, patches, cls = _scores(loss.student, inputs["input"], mask=inputs["mask"])
    local = loss.student.head(torch.cat(inputs["local_views"])[:, 0])
    teacher, teacher_patches, _ = _scores(loss.teacher.module, inputs["input"])
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
    "no koleo, one head": ("dinov2", {"koleo_weight": 0.0, "patch_output_dim": 0},
                           {"classes": 1, "patches": 1}),
    # Of several ranks, half have no hidden patch.
    "bare ibot": ("ibot", {}, {"classes": 1, "patches": 1}),
    "bare sinkhorn": ("dinov2", {"targets": "sinkhorn", "koleo_weight": 0.0},
                      {"classes": 1, "patches": 1}),
}  # fmt: skip


def _gradients(value: Any, loss: Any) -> list[Tensor]:
    return list(
        torch.autograd.grad(value, [p for p in loss.student.parameters() if p.requires_grad])
    )


def _check(name: str, made: list[Any]) -> None:
    """made: of each rank losses, gradients and centres."""
    method, changes, weights = CASES[name]
    loss = _loss(method, **changes)
    expected = _expected(loss, changes.get("targets", "center"), "bare" in name)
    expected = {key: expected[key] for key in weights}
    total = sum(weights[key] * value for key, value in expected.items())
    for key, value in {**expected, "loss": total}.items():
        mean = torch.stack([losses[key] for losses, _, _ in made]).mean()
        torch.testing.assert_close(mean, value.detach(), **CLOSE)
    for number, gradient in enumerate(_gradients(total, loss)):
        mean = torch.stack([gradients[number] for _, gradients, _ in made]).mean(0)
        torch.testing.assert_close(mean, gradient, **CLOSE)


def _run(name: str) -> Any:
    method, changes, _ = CASES[name]
    loss, share = _loss(method, **changes), IMAGES // world_size()
    batch = toy_batch(slice(rank() * share, (rank() + 1) * share), "bare" in name)
    losses = loss(batch, Step.alone())
    gradients = _gradients(losses["loss"], loss)
    centers = [loss.class_center.center, loss.patch_center.center]
    return {key: each.detach() for key, each in losses.items()}, gradients, centers


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name: str) -> None:
    _check(name, [_run(name)])


@pytest.mark.parametrize("pool", [2, pytest.param(4, marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize("name", ["ibot", "sinkhorn", "bare ibot", "bare sinkhorn"])
def test_ranks_are_one_process(name: str, pool: RankPool) -> None:
    """Ranks have unlike numbers of hidden patches; some have none."""
    counts = [
        len(toy_batch(each, "bare" in name).sample["patches_at"])
        for each in (slice(0, 2), slice(2, 4))
    ]
    assert counts[0] != counts[1]
    assert (counts[1] == 0) == ("bare" in name)
    _check(name, pool.run(_run, name))


@pytest.mark.parametrize("name", ["ibot", "center", "sinkhorn"])
def test_centres_are_means_over_all_ranks(name: str, two_ranks: RankPool) -> None:
    """iBOT: of all patches of the teacher; DINOv2: of the hidden ones. Sinkhorn-Knopp needs none."""
    loss, inputs = _loss(CASES[name][0]), toy_batch().sample
    teacher, patches, _ = _scores(loss.teacher.module, inputs["input"])
    rows = patches.flatten(0, 1)
    rows = rows if name == "ibot" else rows[inputs["patches_at"]]
    share = 0.0 if name == "sinkhorn" else 0.1
    expected = [
        (1 - share) * center.center + share * each.mean(0)
        for center, each in ((loss.class_center, teacher), (loss.patch_center, rows))
    ]
    for made in ([_run(name)], two_ranks.run(_run, name)):
        for _, _, centers in made:
            torch.testing.assert_close(centers, expected, **CLOSE)


def test_without_local_views_and_without_hidden_patches() -> None:
    loss, inputs = _loss("dinov2"), dict(toy_batch().sample)
    del inputs["local_views"]
    inputs |= {"mask": torch.zeros_like(inputs["mask"]), "patches_at": inputs["patches_at"][:0]}
    centers = loss.patch_center.center.clone()
    losses = loss(Batch(inputs), Step.alone())
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


def test_the_heads_of_earlier_yaml() -> None:
    """In MODEL.HEAD.PARAMS: one head, or two that may differ."""
    own = {"in_dim": "auto", "num_clusters": [12], "hidden_dim": 3}
    other = {"in_dim": 8, "num_clusters": [34], "use_bn": True}
    for heads, expected in (
        ([own], (12, 0, {"hidden_dim": 3}, {})),
        ([own, other], (12, 34, {"hidden_dim": 3}, {"use_bn": True})),
    ):
        options = DINOv2Options()
        options.infer(RunFacts(heads=(*(("dino_head", each) for each in heads), ("identity", {}))))
        found = options.output_dim, options.patch_output_dim, options.head, options.patch_head
        assert found == expected


def test_arguments_that_the_heads_do_not_take() -> None:
    options = IBOTOptions(head={"hiden_dim": 3}, patch_head={"num_clusters": [3]})
    assert [each.partition(":")[0] for each in options.check()] == [
        "head.hiden_dim", "patch_head.num_clusters",
    ]  # fmt: skip


def _vissls(**more: Any) -> dict[str, Any]:
    """YAML of VISSL: its names of the options, its head and its mapping of inputs."""
    crops = {"name": "ImgPilToMultiCrop", "total_num_crops": 3, "size_crops": [16, 8],
             "num_crops": [2, 1], "crop_scales": [[0.5, 1.0], [0.2, 0.5]]}  # fmt: skip
    vit = {"IMAGE_SIZE": 16, "PATCH_SIZE": 4, "NUM_LAYERS": 1, "NUM_HEADS": 2, "HIDDEN_DIM": 8,
           "MLP_DIM": 16, "MASKED_IMAGE_MODELING": {"NAME": "ibot"}}  # fmt: skip
    head = {"in_dim": 8, "out_dim": 6, "patch_out_dim": 6, "shared_head": True, "norm": None,
            "act": "gelu", "hidden_dim": 12, "bottleneck_dim": 5}  # fmt: skip
    return {
        "DATA__TRAIN__TRANSFORMS": [crops, {"name": "ToTensor"},
                                    {"name": "MaskedImageModeling", "patch_size": 4}],
        "DATA__TRAIN__COLLATE_FUNCTION": "ibot_multicrop_masking_collator",
        "DATA__TRAIN__INPUT_KEY_NAMES": ["global_views", "local_views", "mask"],
        "MODEL__TRUNK": {"NAME": "vision_transformer", "VISION_TRANSFORMERS": vit},
        "MODEL__MULTI_INPUT_HEAD_MAPPING": [["global_views", ["lastMAP"]], ["local_views", ["lastCLS"]]],
        "MODEL__HEAD__PARAMS": [["ibot_head", head]],
        "MODEL__TEMP_FROZEN_PARAMS_ITER_MAP": [["module.heads.0.prototypes0.weight_v", 2]],
        "LOSS": {"name": "ibot_loss", "ibot_loss": {
            "teacher_momentum": 0.9, "teacher_patch_temp": 0.06, "lambda2": 0.5, "num_epochs": 9,
        }}, **more,
    }  # fmt: skip


def test_vissls_yaml_trains(tmp_path: Path) -> None:
    task = make_task(tmp_path, [], **_vissls())
    loop.run(task)
    options, student = task.loss.options, task.loss.student
    assert (options.momentum, options.patch_temp_max, options.patch_weight) == (0.9, 0.06, 0.5)
    assert options.head == {"hidden_dim": 12, "bottleneck_dim": 5, "use_bn": False}
    assert student.patch_head is None
    assert student.head.prototypes0.weight_v.shape == (6, 5)


@pytest.mark.parametrize("network", ["student", "teacher"])
def test_heads_of_earlier_checkpoints(network: str, tmp_path: Path) -> None:
    """They were the model's, `heads.0`: student and teacher start with those of the network."""
    donor: Any = make_task(tmp_path / "donor", [], **_vissls())
    trunk = donor.base_model.trunk.state_dict()
    heads = {f"0.{n}": each + 1 for n, each in donor.loss.student.head.state_dict().items()}
    other = {name: each + 1 for name, each in heads.items()}
    loss = {f"teacher.module.trunk.{name}": each for name, each in trunk.items()}
    loss |= {f"teacher.module.heads.{name}": each for name, each in other.items()}
    torch.save({"classy_state_dict": {
        "base_model": {"model": {"trunk": trunk, "heads": heads}}, "loss": loss,
        "networks": {"teacher": "teacher.module", "judged": "teacher"},
    }}, tmp_path / "earlier.torch")  # fmt: skip
    start = {"PARAMS_FILE": str(tmp_path / "earlier.torch"), "NETWORK": network}
    task: Any = make_task(tmp_path / "run", [], **_vissls(MODEL__WEIGHTS_INIT=start))
    task.load_initial_weights()
    for name, expected in (heads if network == "student" else other).items():
        for each in (task.loss.student, task.loss.teacher.module):
            torch.testing.assert_close(each.head.state_dict()[name.removeprefix("0.")], expected)
