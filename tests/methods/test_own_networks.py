"""Methods that own their network, against their formulas written out, on 1, 2 and 4 ranks."""

from __future__ import annotations

import cmath
import copy
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.resolve import resolve
from sslengine.distributed.collectives import sum_in_place
from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import ConfigError
from sslengine.methods.lejepa import LeJEPA, draw_directions
from sslengine.methods.toolbox import Batch, Step
from sslengine.registry import LOSSES
from tests.ranks import RankPool

IMAGES, PIXELS, WIDTH, CELLS = 8, 5, 6, 3
STEP = 7


class Trunk(nn.Module):
    """Linear: an image is CELLS columns of PIXELS numbers, its feature the mean of its cells'."""

    width = WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(PIXELS, WIDTH)

    def forward(self, views: Sequence[Tensor], maps: Sequence[str] = ()) -> Any:
        found = [
            self.layer(view.mT).mT.unsqueeze(2) for view in views
        ]  # images x WIDTH x 1 x CELLS
        return {"map": found} if maps else torch.stack([each.mean((2, 3)) for each in found])


SMALL: dict[str, dict[str, Any]] = {
    "lejepa": {"dim": 4, "hidden": 5, "slices": 6, "weight": 0.3},
    "visreg": {"dim": 4, "hidden": 5, "slices": 6, "weight": 0.3},
    "moco_v3": {"dim": 4, "hidden": 5, "temperature": 0.3},
    "nnclr": {"dim": 4, "hidden": 5, "predictor_hidden": 5, "rows": 12, "temperature": 0.3},
    "supcon": {"dim": 4, "hidden": 5, "temperature": 0.3},
    "ressl": {"dim": 4, "hidden": 5, "rows": 12},
    "vicregl": {"map": "map", "hidden": 5, "dim": 4, "local": 4, "matches": (2, 1)},
    "densecl": {"map": "map", "dim": 4, "hidden": 5, "rows": 12, "dense": 0.3},
    "densecl by position": {"map": "map", "dim": 4, "hidden": 5, "rows": 12, "match": "position"},
}
VIEWS = {"lejepa": 3, "visreg": 3, "vicregl": 3}


def make(name: str) -> Any:
    """In eval mode, in which batch norms do not depend on the rank, or on other images."""
    torch.manual_seed(0)
    method: Any = LOSSES.get(name.split()[0])(Trunk(), **SMALL[name]).double().eval()
    with torch.no_grad():
        for key, each in method.named_buffers():  # what batch norms have seen
            if "running" in key:
                each.copy_(0.1 * torch.arange(len(each)) + (0.5 if "var" in key else -0.3))
        for each in getattr(method, "teacher", nn.Module()).parameters():
            each.add_(0.1 * torch.sin(torch.arange(each.numel()).view(each.shape) + 1.0))
    return method


def batch_of(name: str, ranks: int = 1, place: int = 0) -> Batch:
    """The share of one rank. The third view is smaller."""
    generator = torch.Generator().manual_seed(3)
    sides = (CELLS, CELLS, CELLS - 1)[: VIEWS.get(name, 2)]
    drawn = [
        torch.randn(IMAGES, PIXELS, n, generator=generator, dtype=torch.float64) for n in sides
    ]
    box = torch.rand(len(sides), IMAGES, 4, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 2, 1, 0, 2, 2])

    def share(values: Tensor) -> Tensor:
        return values.chunk(ranks)[place]

    return Batch({
        "input": [share(each) for each in drawn],
        "target": share(labels).repeat(len(sides)),
        "box": torch.cat([share(each) for each in box]),
    })  # fmt: skip


# ---- the formulas, image by image


def mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean()


def unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=-1, keepdim=True)


def minus_log(positive: Tensor, others: Sequence[Tensor]) -> Tensor:
    """-log(exp(positive) / sum of exp over all of these)"""
    return torch.logsumexp(torch.stack([positive, *others]), 0) - positive


def agreement(z: Tensor) -> Tensor:
    center = (z[0] + z[1]) / 2
    return mean([((each - center) ** 2).mean() for each in z])


def lejepa(method: Any, batch: Batch) -> Tensor:
    z = method.projector(method.trunk(batch.views))
    knots = [-3 + 6 * k / 32 for k in range(33)]
    statistics = []
    for view in z:
        for direction in draw_directions(method.slices, z, STEP):
            heights = []
            for t in knots:
                phi = cmath.exp(-t * t / 2).real
                found = torch.exp(1j * t * (view @ direction)).mean()
                heights.append((found - phi).abs() ** 2 * phi)
            statistics.append(len(view) * torch.trapezoid(torch.stack(heights), dx=6 / 32))
    return 0.7 * agreement(z) + 0.3 * mean(statistics)


def visreg(method: Any, batch: Batch) -> Tensor:
    z = method.projector(method.trunk(batch.views))
    terms = []
    for view in z:
        m = view.mean(0)
        s = ((view - m) ** 2).mean(0).sqrt() + 1e-6
        shapes = []
        for direction in draw_directions(method.slices, z, STEP):
            sorted_ = (((view - m) / s.detach()) @ direction).sort().values
            wanted = [NormalDist().inv_cdf(i / (len(view) + 1)) for i in range(1, len(view) + 1)]
            shapes.append(((sorted_ - torch.tensor(wanted, dtype=z.dtype)) ** 2).mean())
        terms.append((m**2).mean() + ((1 - s) ** 2).mean() + mean(shapes))
    return 0.7 * agreement(z) + 0.3 * mean(terms)


def moco_v3(method: Any, batch: Batch) -> Tensor:
    q = [unit(method.predictor(method.encoder([view])))[0] for view in batch.views]
    k = [unit(method.teacher([view]))[0] for view in batch.views]
    losses = [
        mean(
            [F.cross_entropy((q[v][i] @ k[1 - v].T / 0.3), torch.tensor(i)) for i in range(IMAGES)]
        )
        for v in (0, 1)
    ]
    return 2 * 0.3 * (losses[0] + losses[1])


def nnclr(method: Any, batch: Batch) -> Tensor:
    z = [method.projector([view])[0] for view in batch.views]
    p = [unit(method.predictor(each)) for each in z]
    losses = []
    for v in (0, 1):
        for i in range(IMAGES):
            near = max(method.queue.rows, key=lambda row: (row @ unit(z[v][i])).item())
            losses.append(F.cross_entropy(near @ p[1 - v].T / 0.3, torch.tensor(i)))
    return mean(losses)


def supcon(method: Any, batch: Batch) -> Tensor:
    z = unit(method.head(method.trunk(batch.views))).flatten(0, 1)
    labels = [*batch.labels.tolist()] * 2
    losses = []
    for i, label in enumerate(labels):
        s = [z[i] @ each / 0.3 for each in z]
        total = torch.logsumexp(torch.stack([s[k] for k in range(len(z)) if k != i]), 0)
        losses.append(mean([total - s[p] for p in range(len(z)) if p != i and labels[p] == label]))
    return mean(losses)


def ressl(method: Any, batch: Batch) -> Tensor:
    k, q = unit(method.teacher(batch.views[:1]))[0], unit(method.student(batch.views[1:]))[0]
    rows = method.queue.rows
    losses = [
        -((rows @ k[i] / 0.04).softmax(0) * (rows @ q[i] / 0.1).log_softmax(0)).sum()
        for i in range(IMAGES)
    ]
    return mean(losses)


def positions(box: Tensor, cells: int) -> list[list[Tensor]]:
    left, top, right, bottom = box.unbind(1)
    return [
        [torch.stack([x0 + (x1 - x0) * (c + 0.5) / cells, (y0 + y1) / 2]) for c in range(cells)]
        for x0, y0, x1, y1 in zip(left, top, right, bottom)
    ]


def variance_and_covariance(rows: Tensor) -> Tensor:
    """25 V + C, of images x width."""
    found = torch.cov(rows.T)
    apart = found - found.diagonal().diag()
    deviations = (found.diagonal() + 1e-4).sqrt()
    return 25 * F.relu(1 - deviations).mean() + (apart**2).sum() / len(found)


def vicregl(method: Any, batch: Batch) -> Tensor:
    maps = [method.trunk([view], ["map"])["map"][0].squeeze(2).mT for view in batch.views]
    z = [method.whole(each.mean(1).unsqueeze(0))[0] for each in maps]
    y = [method.local(each) for each in maps]
    at = [positions(box, each.shape[1]) for box, each in zip(batch["box"], maps)]
    pairs = [(a, b) for a in (0, 1) for b in (0, 1, 2) if a != b]
    whole = 25 * mean([((z[a] - z[b]) ** 2).mean() for a, b in pairs])
    whole = whole + mean([variance_and_covariance(each) for each in z])
    local = []
    for pair in pairs:
        for (a, b), count in zip((pair, pair[::-1]), (2, 1)):
            alike, ours, theirs = [], [], []
            for i in range(IMAGES):
                alike.append(
                    [min(y[b][i], key=lambda row: (row - one).norm().item()) for one in y[a][i]]
                )
                found = []
                for number, place in enumerate(at[a][i]):
                    apart = [(place - other).norm().item() for other in at[b][i]]
                    found.append((min(apart), number, apart.index(min(apart))))
                nearest = sorted((mine, other) for _, mine, other in sorted(found)[:count])
                ours.append([y[a][i][mine] for mine, _ in nearest])
                theirs.append([y[b][i][other] for _, other in nearest])
            pairs_of_rows = [
                [rows if isinstance(rows, Tensor) else torch.stack([torch.stack(r) for r in rows])
                 for rows in both]
                for both in ((y[a], alike), (ours, theirs))
            ]  # fmt: skip
            terms = [
                25 * ((one - other) ** 2).mean()
                + mean([variance_and_covariance(rows[:, place])
                        for rows in (one, other) for place in range(rows.shape[1])])
                for one, other in pairs_of_rows
            ]  # fmt: skip
            local.append(terms[0] + terms[1])
    return 0.75 * whole + 0.25 * mean(local)


def densecl(method: Any, batch: Batch) -> Tensor:
    (f, q, y), (g, k, x) = method.encoder(batch.views[0]), method.teacher(batch.views[1])
    f, g = f.squeeze(2).mT, g.squeeze(2).mT
    q, k, y, x = unit(q), unit(k), unit(y), unit(x)
    at = [positions(box, CELLS) for box in batch["box"]]
    whole = [
        minus_log(q[i] @ k[i] / 0.2, [q[i] @ row / 0.2 for row in method.queue.rows])
        for i in range(IMAGES)
    ]
    places = []
    for i in range(IMAGES):
        for c in range(CELLS):
            if method.match == "position":
                apart = [(at[0][i][c] - other).norm().item() for other in at[1][i]]
            else:
                apart = [-(unit(f[i][c]) @ unit(other)).item() for other in g[i]]
            positive = y[i][c] @ x[i][apart.index(min(apart))] / 0.2
            rows = method.queue_of_places.rows
            places.append(minus_log(positive, [y[i][c] @ row / 0.2 for row in rows]))
    return (1 - method.dense) * mean(whole) + method.dense * mean(places)


FORMULAS: dict[str, Callable[[Any, Batch], Tensor]] = {
    "lejepa": lejepa, "visreg": visreg, "moco_v3": moco_v3, "nnclr": nnclr, "supcon": supcon,
    "ressl": ressl, "vicregl": vicregl, "densecl": densecl, "densecl by position": densecl,
}  # fmt: skip


def gradient_of(method: Any) -> Tensor:
    (found,) = (
        each
        for name, each in method.named_parameters()
        if name.endswith("layer.weight") and each.requires_grad
    )
    assert found.grad is not None
    return found.grad


def loss_of(method: Any, batch: Batch, train: bool = True, iteration: int = STEP) -> Tensor:
    found = method(batch, Step.alone(iteration=iteration, train=train))
    loss: Tensor = found["loss"] if isinstance(found, dict) else found
    return loss


@pytest.mark.parametrize("name", SMALL)
def test_value_and_gradient(name: str) -> None:
    method, same, batch = make(name), make(name), batch_of(name)
    expected = FORMULAS[name](same, batch)
    expected.backward()
    loss = loss_of(method, batch)
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradient_of(method), gradient_of(same), rtol=1e-7, atol=1e-9)


def _step(name: str, iteration: int = STEP) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Loss and gradient as means over ranks, and the state afterwards."""
    method = make(name)
    loss = loss_of(method, batch_of(name, world_size(), rank()), iteration=iteration)
    loss.backward()
    means = [
        sum_in_place(each.clone()) / world_size() for each in (loss.detach(), gradient_of(method))
    ]
    return means[0], means[1], dict(method.named_buffers())


def _assert_ranks_equal_one_process(pool: RankPool, name: str) -> None:
    expected = _step(name)
    for found in pool.run(_step, name):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


OF_ALL_RANKS = [name for name in SMALL if name != "visreg"]  # of which ranks draw other directions


def test_ranks_of_visreg_share_images_and_not_directions(two_ranks: RankPool) -> None:
    alone = [_step("visreg", 2 * STEP + rank) for rank in range(2)]
    for loss, gradient, _ in two_ranks.run(_step, "visreg"):
        torch.testing.assert_close(loss, mean([each[0] for each in alone]), rtol=1e-9, atol=1e-9)
        both = (alone[0][1] + alone[1][1]) / 2
        torch.testing.assert_close(gradient, both, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OF_ALL_RANKS)
def test_two_ranks_equal_one_process(two_ranks: RankPool, name: str) -> None:
    _assert_ranks_equal_one_process(two_ranks, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_ALL_RANKS)
def test_four_ranks_equal_one_process(four_ranks: RankPool, name: str) -> None:
    _assert_ranks_equal_one_process(four_ranks, name)


@pytest.mark.parametrize("name", ["nnclr", "ressl", "densecl"])
def test_queues_take_a_batch_after_its_use_and_in_training_alone(name: str) -> None:
    method = make(name)
    before = copy.deepcopy(dict(method.named_buffers()))
    first = loss_of(method, batch_of(name))
    assert loss_of(method, batch_of(name)) != first
    queues = {key for key, each in method.named_buffers() if not torch.equal(each, before[key])}
    assert queues == {key for key in before if key.endswith("rows")}
    method = make(name)
    loss_of(method, batch_of(name), train=False)
    assert all(torch.equal(each, before[key]) for key, each in method.named_buffers())


def test_directions_are_unit_vectors_of_any_direction_and_of_the_step() -> None:
    drawn = draw_directions(20_000, torch.zeros(4, dtype=torch.float64), 3)
    torch.testing.assert_close(drawn.norm(dim=1), torch.ones(20_000).double())
    torch.testing.assert_close(drawn.mean(0), torch.zeros(4).double(), rtol=0, atol=0.02)
    torch.testing.assert_close(torch.cov(drawn.T), torch.eye(4).double() / 4, rtol=0, atol=0.02)
    assert torch.equal(drawn, draw_directions(20_000, torch.zeros(4, dtype=torch.float64), 3))
    other = draw_directions(20_000, torch.zeros(4, dtype=torch.float64), 4)
    assert (drawn * other).sum(1).mean().abs() < 0.02


def test_sigreg_in_float32_is_that_in_float64() -> None:
    torch.manual_seed(0)
    method = LeJEPA(Trunk(), **SMALL["lejepa"]).eval()  # type: ignore[arg-type]
    twin, batch = copy.deepcopy(method).double(), batch_of("lejepa")
    views = [each.float() for each in batch.views]
    single = loss_of(method, Batch({"input": views}))
    torch.testing.assert_close(single.double(), loss_of(twin, batch), rtol=1e-5, atol=1e-6)


def test_a_run_without_labels_is_refused_by_supcon() -> None:
    with pytest.raises(ConfigError, match=r"config\.DATA\.TRAIN\.LABEL_SOURCES"):
        resolve(["config=quickstart/supcon", "config.DATA.TRAIN.LABEL_SOURCES=[]"])


def test_arguments_stay_with_the_loss_that_their_file_names() -> None:
    found = resolve(["config=quickstart/lejepa", "+config/benchmark/frozen=shapes"]).config.LOSS
    assert (found.name, found.lejepa.dim) == ("CrossEntropyLoss", 32)
