"""Teacher and Step, which methods of one's own are made with: alone, and in the real task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.errors import ConfigError, TrainingError
from sslengine.methods.base import Method, callbacks
from sslengine.methods.step import Step
from sslengine.methods.teacher import Teacher
from sslengine.precision import Precision
from tests.engine.runs import make_task, train


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def _attached(**options: Any) -> tuple[Teacher, nn.Module]:
    teacher, model = Teacher(**options), _model()
    teacher.attach(model)
    return teacher, model


@pytest.mark.parametrize(
    ("schedule", "momentum"),
    [("constant", 0.9), ("linear", 0.925), ("cosine", 1 - 0.1 * (2 + 2**0.5) / 4)],
)
def test_it_follows(schedule: Any, momentum: float) -> None:
    """A quarter of the way."""
    teacher, model = _attached(momentum=0.9, schedule=schedule)
    before = [each.clone() for each in teacher.parameters()]
    with torch.no_grad():
        for each in model.parameters():
            each.add_(1.0)
    teacher.after_update(Step.alone(where=0.25))
    for got, was, now in zip(teacher.parameters(), before, model.parameters(), strict=True):
        torch.testing.assert_close(got, momentum * was + (1 - momentum) * now)
        assert not got.requires_grad


def test_its_output_is_the_models() -> None:
    teacher, model = _attached()
    teacher.eval()
    inputs = torch.randn(5, 3)
    output = teacher(inputs, Step.alone(train=False))
    assert torch.equal(output, model.eval()(inputs))
    assert not output.requires_grad
    half = Precision(torch.device("cpu"), torch.bfloat16)
    lower = teacher(inputs, Step.alone(train=False, precision=half))
    assert lower.dtype == torch.float32
    assert not torch.equal(lower, output)


@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize("statistics", ["batch", "model"])
def test_what_is_random_and_whose_statistics(dropout: bool, statistics: Any) -> None:
    teacher, model = _attached(dropout=dropout, statistics=statistics)
    norm = teacher.module[1]
    inputs = torch.randn(64, 3)
    for mode in (False, True):  # back and forth, as phases do
        teacher.train(mode)
    first, second = (teacher(inputs, Step.alone()) for _ in range(2))
    assert torch.equal(first, second) is not dropout
    assert bool(norm.num_batches_tracked) is (statistics == "batch")
    model(inputs)
    teacher.after_update(Step.alone())
    assert torch.equal(norm.running_mean, model[1].running_mean) is (statistics == "model")
    model(inputs + 1)
    teacher.eval()
    before = norm.running_mean.clone()
    teacher(inputs, Step.alone(train=False))
    assert torch.equal(norm.running_mean, before)


def test_mistakes() -> None:
    with pytest.raises(ConfigError, match="expected cosine or linear or constant, got 'cosin'"):
        Teacher(schedule="cosin")  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match="attach"):
        Teacher()(torch.ones(1), Step.alone())


def test_a_step_of_no_task() -> None:
    step = Step.alone(iteration=3, num_updates=2, where=0.5, epoch=1, train=False, updating=False)
    facts = (step.iteration, step.num_updates, step.where, step.epoch, step.train, step.updating)
    assert facts == (3, 2, 0.5, 1, False, False)
    step.put("x", 1.0)
    assert step.metrics == {"x": 1.0}


class Taught(Method):
    """A teacher in two lines; callbacks of its own, and those of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = Teacher(momentum=0.5)
        self.part = Counting()
        self.register_buffer("told", torch.zeros(4, dtype=torch.long))

    def forward(self, output: Tensor, sample: Any, step: Step) -> Tensor:
        assert step.train is self.training
        targets = self.teacher(sample["input"], step)
        if step.train:
            self.told[0] += 1
            assert int(self.told[0]) == step.iteration + 1
        return (output - targets.flip(0)).square().mean()

    def after_backward(self, step: Step) -> None:
        self.told[1] += 1
        self.told[3] += int(step.updating)

    def after_update(self, step: Step) -> None:
        assert int(self.told[2]) == step.num_updates
        self.told[2] += 1


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    def after_update(self, step: Step) -> None:
        self.updates += 1


TAUGHT: dict[str, Any] = {"LOSS": {"name": f"{__name__}:Taught"}}


def test_verbs_in_a_run(tmp_path: Path) -> None:
    task = train(tmp_path, [], **TAUGHT, OPTIMIZER__accumulate=2, OPTIMIZER__num_epochs=1)
    assert task.loss.told.tolist() == [4, 4, 2, 2]
    assert int(task.loss.part.updates) == 2
    assert [each.__self__ for each in callbacks(task.loss, "attach")] == [task.loss.teacher]  # type: ignore[attr-defined]


def test_its_teacher_is_known_by_name(tmp_path: Path) -> None:
    task = make_task(tmp_path, [], **TAUGHT)
    networks = task.get_classy_state()["networks"]
    assert networks == {"teacher": "teacher.module", "judged": "student"}


class Late(Method):
    def attach(self, model: nn.Module) -> None:
        self.predictor = nn.Linear(8, 8)

    def forward(self, output: Tensor, sample: Any, step: Step) -> Tensor:
        return self.predictor(output).square().mean()


def test_parameters_that_are_made_again_would_not_be_trained(tmp_path: Path) -> None:
    """Initial weights attach a method again; what the optimizer has is what was made first."""
    task = make_task(tmp_path, [], LOSS={"name": f"{__name__}:Late"})
    with pytest.raises(ConfigError, match=r"no optimizer owns .*: loss.predictor.bias, loss.pred"):
        task.load_initial_weights()
