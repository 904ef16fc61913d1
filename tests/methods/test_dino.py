"""DINO against the paper's algorithm: loss, centre, teacher and schedules, 1, 2 and 4 ranks."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from sslengine.checkpoint import files
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.config.facts import RunFacts
from sslengine.distributed.ranks import rank, world_size
from sslengine.engine import loop
from sslengine.engine.checkpointing import SaveCheckpoints
from sslengine.engines.train import train as train_engine
from sslengine.errors import ConfigError, TrainingError
from sslengine.methods.dino import DINOHead, DINOLoss, DINOOptions
from sslengine.methods.step import Step
from sslengine.methods.teacher import warmup
from tests.engine.runs import Stop, Watch, make_task, same, train
from tests.engines.runs import make_run
from tests.ranks import RankPool


def by_the_paper(
    student: Tensor, teacher: Tensor, center: Tensor, temp: float, options: DINOOptions
) -> Tensor:
    """H(p_t, p_s), pair of crops by pair, image by image. Rows crop by crop."""
    s = student.reshape(options.num_crops, -1, student.shape[-1])
    t = teacher.reshape(len(options.crops_for_teacher), -1, teacher.shape[-1])
    terms = []
    for a, source in enumerate(options.crops_for_teacher):
        for v in range(len(s)):
            for b in range(s.shape[1] if v != source else 0):
                centred = [(x - c) / temp for x, c in zip(t[a, b].tolist(), center.tolist())]
                weights = [math.exp(x - max(centred)) for x in centred]
                logits = s[v, b] / options.student_temp
                log_p = logits - torch.logsumexp(logits, 0)
                terms.append(-sum(w * x for w, x in zip(weights, log_p)) / sum(weights))
    return torch.stack(terms).mean()


def _options(**changes: Any) -> DINOOptions:
    return DINOOptions(**{"output_dim": 3, **changes})


def _loss(**changes: Any) -> DINOLoss:
    return DINOLoss(_options(**changes), RunFacts()).double()


class Joined(nn.Module):
    """A model whose scores are the crops themselves."""

    def forward(self, crops: list[Tensor]) -> Tensor:
        return torch.cat(crops)


def _value(
    loss: DINOLoss, student: Any, teacher: Tensor, temp: float = 0.04, **at: Any
) -> dict[str, Tensor]:
    """With a teacher that gives these scores, at this temperature."""
    options = loss.options
    options.teacher_temp_warmup_iters, options.teacher_temp_max = 0, temp
    loss.momentum_teacher.attach(Joined())
    crops = [teacher[:0]] * options.num_crops
    sources = options.crops_for_teacher
    for number, scores in zip(sources, teacher.chunk(len(sources)), strict=True):
        crops[number] = scores
    return loss(student, {"input": crops}, Step.alone(**at))


def _scores(rows: int, prototypes: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(rows, prototypes, generator=generator, dtype=torch.float64) - 1


@given(
    crops=st.integers(2, 5),
    images=st.integers(1, 5),
    prototypes=st.integers(1, 6),
    student_temp=st.sampled_from([1e-3, 0.1, 1.0, 50.0]),
    teacher_temp=st.sampled_from([1e-3, 0.04, 1.0, 50.0]),
    seed=st.integers(0, 10_000),
    data=st.data(),
)
def test_value_and_gradient(
    crops: int, images: int, prototypes: int, student_temp: float, teacher_temp: float, seed: int,
    data: st.DataObject,
) -> None:  # fmt: skip
    sources = data.draw(st.lists(st.integers(0, crops - 1), min_size=1, unique=True))
    loss = _loss(
        num_crops=crops, output_dim=prototypes, student_temp=student_temp, crops_for_teacher=sources
    )
    ours = _scores(crops * images, prototypes, seed).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    teacher = _scores(len(sources) * images, prototypes, seed + 1)
    center = _scores(1, prototypes, seed + 2)
    loss.center.copy_(center)
    value = _value(loss, ours, teacher, teacher_temp)["loss"]
    expected = by_the_paper(theirs, teacher, center[0], teacher_temp, loss.options)
    value.backward()
    expected.backward()
    rounding = 1e-13 / student_temp / min(1.0, teacher_temp)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=rounding + 1e-12)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=rounding + 1e-12)


def test_the_centre_follows_the_teacher_behind_its_use() -> None:
    """c <- m c + (1 - m) mean of the teacher's scores; the loss of a step has the c before."""
    loss, center = _loss(ema_center=0.8), torch.zeros(3, dtype=torch.float64)
    for step in range(4):
        student, teacher = _scores(8, 3, step), _scores(8, 3, 10 + step)
        expected = by_the_paper(student, teacher, center, 0.05, loss.options)
        torch.testing.assert_close(_value(loss, student, teacher, 0.05)["loss"], expected)
        mean = torch.stack(list(teacher)).mean(dim=0)
        center = 0.8 * center + (1 - 0.8) * mean
        torch.testing.assert_close(loss.center[0], center)


def test_the_entropy_of_the_teacher() -> None:
    loss = _loss()
    entropy = _value(loss, _scores(4, 3, 1), _scores(4, 3, 0), 0.3)["teacher_entropy"]
    p = F.softmax(_scores(4, 3, 0) / 0.3, dim=1)
    assert entropy.item() == pytest.approx(torch.distributions.Categorical(p).entropy().mean())


def test_single_precision_stays_finite_where_exp_does_not() -> None:
    loss = _loss(student_temp=5e-4).float()
    student = _scores(6, 3, 0).float().requires_grad_()
    parts = _value(loss, student, _scores(6, 3, 1).float(), 1e-4)
    parts["loss"].backward()
    assert all(torch.isfinite(each) for each in parts.values())
    assert torch.isfinite(student.grad).all()


def test_as_an_independent_implementation() -> None:
    lightly = pytest.importorskip("lightly.loss")
    theirs = lightly.DINOLoss(output_dim=7, teacher_temp=0.06, student_temp=0.2).double()
    ours = _loss(num_crops=5, output_dim=7, student_temp=0.2)
    for step in range(3):
        student, teacher = _scores(5 * 6, 7, step), _scores(2 * 6, 7, 10 + step)
        expected = theirs(list(teacher.chunk(2)), list(student.chunk(5)))
        # lightly keeps its teacher's temperature in single precision.
        value = _value(ours, student, teacher, 0.06)["loss"]
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(ours.center, theirs.center.view(1, 7))


def test_the_teacher_gets_no_gradient() -> None:
    loss, teacher = _loss(), _scores(4, 3, 0).requires_grad_()
    _value(loss, _scores(4, 3, 1).requires_grad_(), teacher)["loss"].backward()
    assert teacher.grad is None


def test_rows_that_do_not_fit() -> None:
    loss = _loss()
    _value(loss, [torch.zeros(4, 9), _scores(4, 3, 1)], _scores(4, 3, 0))  # embeddings, scores
    with pytest.raises(TrainingError, match="2 views of every image"):
        _value(loss, _scores(5, 3, 1), _scores(4, 3, 0))


@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_the_teachers_temperature(length: int) -> None:
    ramp = torch.linspace(0.04, 0.07, length, dtype=torch.float64).tolist()
    expected = [*ramp, 0.07, 0.07, 0.07]
    found = [warmup(Step.alone(i), 0.04, 0.07, length) for i in range(length + 3)]
    assert found == pytest.approx(expected)


def test_the_teachers_temperature_by_epochs_is_the_authors_schedule(tmp_path: Path) -> None:
    """linspace over the epochs of the warm-up, then constant; the same for a whole epoch."""
    authors = [*torch.linspace(0.04, 0.07, 30, dtype=torch.float64).tolist(), 0.07, 0.07]
    steps = [Step.alone(1000 * epoch, epoch=epoch) for epoch in range(32)]
    assert [warmup(each, 0.04, 0.07, 3, 30) for each in steps] == pytest.approx(authors)
    changes = {"teacher_temp_min": 0.04, "teacher_temp_max": 0.07, "teacher_temp_warmup_epochs": 2}
    used = _temperatures(tmp_path, **{f"LOSS__dino_loss__{k}": v for k, v in changes.items()})
    assert set(used) == {(0, 0.04), (1, 0.07)}
    assert len(used) > 2


def test_the_warm_up_counts_updates(tmp_path: Path) -> None:
    """Two batches for an update have its temperature; also after a kill between the two."""
    rising = {"LOSS__dino_loss__teacher_temp_warmup_iters": 4, "OPTIMIZER__num_epochs": 2}
    alone = [each for _, each in _temperatures(tmp_path / "alone", **rising)]
    assert len(set(alone[:4])) == 4
    both = {**rising, "OPTIMIZER__accumulate": 2}
    used = [each for _, each in _temperatures(tmp_path / "both", **both)]
    assert used == [each for each in alone[:4] for _ in range(2)]
    folder = tmp_path / "killed"
    saves = SaveCheckpoints(folder, CheckpointOptions(CHECKPOINT_ITER_FREQUENCY=2))
    with pytest.raises(Stop):
        _temperatures(folder, [Watch(stop_after=3), saves], **both)
    state = files.newest(folder)[1]["classy_state_dict"]
    assert (state["progress"]["iteration"], state["num_updates"]) == (2, 1)
    assert [each for _, each in _temperatures(folder, state=state, **both)] == used[2:]


def _temperatures(
    folder: Path, hooks: Sequence[Any] = (), state: dict[str, Any] | None = None, **changes: Any
) -> list[tuple[int, float]]:
    """Of each step of a run, or of the rest of one, with its epoch."""
    task, used = make_task(folder, [*hooks], **{**RESNET, **changes}), []
    if state is not None:
        task.set_classy_state(state)
    task.loss.options = copy.copy(task.loss.options)
    ask = task.loss.options.teacher_temp

    def note(step: Step) -> float:
        used.append((task.phase.epoch, ask(step)))
        return used[-1][1]

    task.loss.options.teacher_temp = note
    loop.run(task)
    return used


# ---- several ranks: linear models, each rank with its share of the images

IMAGES, CROPS = 8, 3


def _crops(step: int) -> Tensor:
    """(CROPS, IMAGES, 5): images of every rank differ in size."""
    pixels = _scores(CROPS * IMAGES, 5, seed=100 + step).view(CROPS, IMAGES, 5)
    return pixels * (1 + torch.arange(IMAGES).view(1, -1, 1))


class OneHead(nn.Module):
    """As much of a model as a step needs: a list of crops in, a list of outputs out."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.head = DINOHead(5, [3], hidden_dim=6, bottleneck_dim=4).double()
        with torch.no_grad():  # its first weights are so small that all scores are alike
            for parameter in self.head.mlp.parameters():
                parameter.normal_()

    def forward(self, crops: list[Tensor]) -> list[Tensor]:
        return [self.head(torch.cat(list(crops)))]


class Steps:
    """A student and its teacher, by the verbs that the engine calls."""

    def __init__(self, wrap: bool) -> None:
        self.bare = OneHead()
        self.model: nn.Module = DistributedDataParallel(self.bare) if wrap else self.bare
        self.loss = _loss(num_crops=CROPS, momentum=0.9, teacher_temp_warmup_iters=3)
        self.teacher = self.loss.momentum_teacher
        self.teacher.attach(self.bare)  # it follows this one, and starts as another
        self.teacher.module.load_state_dict(OneHead(seed=1).state_dict())
        self.optimizer = torch.optim.SGD(self.bare.parameters(), lr=0.1)

    def step(self, index: int) -> float:
        """One step on this rank's images; its loss."""
        crops = list(_crops(index).chunk(world_size(), dim=1)[rank()])
        self.at = Step.alone(iteration=index, where=index / 5)
        loss = self.loss(self.model(crops)[0], {"input": crops}, self.at)["loss"]
        self.optimizer.zero_grad()
        loss.backward()
        return loss.item()

    def update(self) -> None:
        self.optimizer.step()
        self.teacher.after_update(self.at)

    def gradients(self) -> dict[str, Tensor]:
        return {n: p.grad.clone() for n, p in self.bare.named_parameters() if p.grad is not None}


def _first_step(wrap: bool) -> tuple[float, dict[str, Tensor]]:
    steps = Steps(wrap)
    return steps.step(0), steps.gradients()


def _five_steps() -> tuple[list[float], dict[str, Tensor]]:
    """Losses, and the state of the loss: teacher and centre."""
    steps = Steps(wrap=world_size() > 1)
    losses = []
    for index in range(5):
        losses.append(steps.step(index))
        steps.update()
    return losses, steps.loss.state_dict()


@pytest.mark.parametrize("pool", [2, 4], indirect=True)
def test_ranks_together_equal_one_process_with_the_whole_batch(pool: RankPool) -> None:
    student, teacher, crops = OneHead(), OneHead(seed=1), list(_crops(0))
    options = _options(num_crops=CROPS)
    center = torch.zeros(3, dtype=torch.float64)
    targets = teacher(crops[:2])[0].detach()
    expected = by_the_paper(student(crops)[0], targets, center, 0.04, options)
    expected.backward()
    by_ddp = pool.run(_first_step, True)
    assert sum(loss for loss, _ in by_ddp) / pool.world_size == pytest.approx(
        expected.item(), rel=1e-12
    )
    own = [gradients for _, gradients in pool.run(_first_step, False)]
    for name, parameter in student.named_parameters():
        if not parameter.requires_grad:
            continue
        for _, gradients in by_ddp:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-9, atol=1e-12)
        summed = torch.stack([each[name] for each in own]).sum(dim=0) / pool.world_size
        torch.testing.assert_close(summed, parameter.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("pool", [2, 4], indirect=True)
def test_teacher_and_centre_over_ranks_are_those_of_one_process(pool: RankPool) -> None:
    losses, state = _five_steps()
    assert state["center"].abs().max() > 1e-3
    results = pool.run(_five_steps)
    mean = torch.tensor([each for each, _ in results], dtype=torch.float64).mean(dim=0)
    torch.testing.assert_close(mean.tolist(), losses, rtol=1e-9, atol=1e-12)
    for _, mine in results:
        assert same(mine, results[0][1])
        for name, value in state.items():
            torch.testing.assert_close(mine[name], value, rtol=1e-8, atol=1e-11)


# ---- the head


def test_the_head_has_vissls_names() -> None:
    head = DINOHead(5, [7], use_bn=True, hidden_dim=6, bottleneck_dim=4)
    parameters = {name: tuple(each.shape) for name, each in head.named_parameters()}
    assert parameters == {
        "mlp.0.weight": (6, 5), "mlp.0.bias": (6,), "mlp.1.weight": (6,), "mlp.1.bias": (6,),
        "mlp.3.weight": (6, 6), "mlp.3.bias": (6,), "mlp.4.weight": (6,), "mlp.4.bias": (6,),
        "mlp.6.weight": (4, 6), "mlp.6.bias": (4,),
        "prototypes0.weight_g": (7, 1), "prototypes0.weight_v": (7, 4),
    }  # fmt: skip
    single = DINOHead(5, [7], num_layers=1, bottleneck_dim=4)
    assert tuple(single.mlp.weight.shape) == (4, 5)


def test_scores_are_cosines_with_directions() -> None:
    head = DINOHead(5, [7], num_layers=2, hidden_dim=6, bottleneck_dim=4)
    x = torch.randn(3, 5)
    embedded = head.mlp[2](F.gelu(head.mlp[0](x)))
    directions = head.prototypes0.weight_v
    expected = F.cosine_similarity(embedded[:, None], directions[None], dim=-1)
    torch.testing.assert_close(head(x), expected)
    torch.testing.assert_close(head(x[:, :, None, None]), expected)


def test_a_head_can_be_copied_after_a_forward() -> None:
    head = DINOHead(5, [7])
    head(torch.ones(2, 5)).sum().backward()
    copied = copy.deepcopy(head)
    assert copied.prototypes0.weight_v.data_ptr() != head.prototypes0.weight_v.data_ptr()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num_clusters": [3, 4]}, r"num_clusters: expected one number, got \[3, 4\]"),
        ({"num_clusters": [3], "num_layers": 0}, "num_layers: expected 1 or more, got 0"),
    ],
)
def test_heads_that_cannot_be(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        DINOHead(5, **arguments)


# ---- whole runs

CROPPED: dict[str, Any] = {
    "DATA__TRAIN__TRANSFORMS": [
        {"name": "ImgPilToMultiCrop", "total_num_crops": 4, "num_crops": [2, 2],
         "size_crops": [8, 4], "crop_scales": [[0.5, 1.0], [0.2, 0.5]]},
        {"name": "RandomHorizontalFlip"},
        {"name": "ToTensor"},
    ],
    "DATA__TRAIN__COLLATE_FUNCTION": "multicrop_collator",
    "LOSS__name": "dino_loss",
    "LOSS__dino_loss__momentum": 0.9,
    "LOSS__dino_loss__teacher_temp_warmup_iters": 5,
}  # fmt: skip
HEAD = {"in_dim": 32, "num_clusters": [12], "use_bn": True, "hidden_dim": 16, "bottleneck_dim": 8}
RESNET: dict[str, Any] = {**CROPPED, "MODEL__HEAD__PARAMS": [["dino_head", HEAD]]}
SMALL_VIT = {"IMAGE_SIZE": 8, "PATCH_SIZE": 4, "NUM_LAYERS": 2, "NUM_HEADS": 2, "HIDDEN_DIM": 16,
             "MLP_DIM": 32, "DROP_PATH_RATE": 0.4, "DROPOUT_RATE": 0.1}  # fmt: skip
VIT: dict[str, Any] = {
    **CROPPED,
    "MODEL__TRUNK": {"NAME": "vision_transformer", "VISION_TRANSFORMERS": SMALL_VIT},
    "MODEL__HEAD__PARAMS": [["dino_head", {**HEAD, "in_dim": 16, "use_bn": False}]],
}
TRUNKS = pytest.mark.parametrize("recipe", [RESNET, VIT], ids=["resnet", "vit"])


def test_nothing_in_the_teacher_is_random(tmp_path: Path) -> None:
    """The student drops paths; the teacher sees the same in an image every time."""
    task = make_task(tmp_path, [], **VIT)
    task.base_model.train()
    task.loss.train()
    images = [torch.randn(6, 3, 8, 8)]
    one, two = (task.loss.momentum_teacher(images, Step.alone()) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(task.base_model(images)[0], task.base_model(images)[0])


def test_embeddings_before_the_scores_do_no_harm(tmp_path: Path) -> None:
    """As VISSL's recipes for XCiT have it: SwAV's head with directions for prototypes."""
    head = {"dims": [32, 16, 8], "use_bn": False, "num_clusters": [12], "activation_name": "GELU",
            "use_weight_norm_prototypes": True}  # fmt: skip
    for embeddings in (True, False):
        arguments = {**head, "return_embeddings": embeddings}
        changes = {"MODEL__HEAD__PARAMS": [["swav_head", arguments]]}
        task = train(tmp_path / str(embeddings), [], **{**RESNET, **changes})
        assert task.iteration == 8
        assert task.loss.center.shape == (1, 12)


def test_vissls_yaml_finds_the_teacher_in_a_checkpoint(tmp_path: Path) -> None:
    train_engine(make_run(tmp_path / "run", **RESNET))
    pointer = tmp_path / "run" / "checkpoints" / files.POINTER
    init = {"PARAMS_FILE": str(pointer), "STATE_DICT_KEY_NAME": "loss",
            "REMOVE_PREFIX": "momentum_teacher.module."}  # fmt: skip
    task = make_task(tmp_path, [], **RESNET, MODEL__WEIGHTS_INIT=init)
    task.load_initial_weights()
    stored = files.read(pointer)["loss"]
    for name, value in task.base_model.state_dict().items():
        if "num_batches_tracked" not in name:
            assert torch.equal(value, stored[f"momentum_teacher.module.{name}"])


# ---- what a user can get wrong


def _facts(**changes: Any) -> RunFacts:
    facts = {"views_per_image": 5, "heads": (("dino_head", HEAD),),
             "collator": "multicrop_collator", **changes}  # fmt: skip
    return RunFacts(**facts)


def test_options_follow_the_run() -> None:
    options = DINOOptions()
    options.infer(_facts())
    assert (options.num_crops, options.output_dim) == (5, 12)
    options.infer(_facts(heads=(("swav_head", {"num_clusters": [9, 4]}),)))
    assert options.output_dim == 4  # the last scores are those that count
