from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sslengine.errors import TrainingError
from sslengine.hooks.timing import STAGES
from sslengine.python.task import PythonTask
from tests.engine.tasks import ListModel, Seen, at, begin, make_batch


def _begin(loss: Any = None, *hooks: Any, batches: int = 9, **changes: Any) -> PythonTask:
    given = [make_batch(seed) for seed in range(batches)]
    return begin(given, ListModel(), loss or nn.CrossEntropyLoss(), *hooks, **changes)


def test_every_stage_is_timed_under_its_name() -> None:
    task = _begin(METERS={"name": "accuracy_list_meter"})
    task.perf.start()
    task.step()
    assert [row.name for row in task.perf.report()] == list(STAGES)
    assert all(row.count == 1 for row in task.perf.report())


def test_a_hook_may_replace_the_output() -> None:
    def replace(task: Any) -> None:
        task.last_batch.model_output = task.last_batch.model_output * 0

    _begin(None, at("on_forward", replace), seen := Seen()).step()
    assert seen.parts == [{"loss": pytest.approx(0.6931472)}]


def test_a_loss_may_have_parts() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": output.pow(2).mean(), "half": output.new_tensor(0.5)}

    task = _begin(loss, seen := Seen())
    before = task.base_model.linear.weight.clone()
    task.step()
    assert [set(parts) for parts in seen.parts] == [{"loss", "half"}]
    assert not torch.equal(before, task.base_model.linear.weight)
    assert not task.last_batch.loss.requires_grad


def test_parts_without_a_loss_are_refused() -> None:
    task = _begin(lambda output, target: {"a": output.sum(), "b": output.sum()})
    with pytest.raises(TrainingError, match="'loss' is the one to minimise.*'a', 'b'"):
        task.step()


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (lambda output, target: output, "'loss'"),
        (lambda output, target: {"loss": output.sum(), "each": output}, "'each'"),
    ],
)
def test_what_is_no_number_is_refused(loss: Any, name: str) -> None:
    with pytest.raises(TrainingError, match=rf"{name} a tensor of shape \(4, 2\): take its mean"):
        _begin(loss).step()


def test_meters_are_fed() -> None:
    task = _begin(METERS={"name": "accuracy_list_meter"})
    task.step()
    (meter,) = task.state.active_meters
    assert 0 <= meter.value()["top_1"]["0"] <= 100


def test_gradients_of_a_group_add_up_by_weight() -> None:
    """Batches of a group, weighted: the gradient of the mean over all their samples."""
    batches = [make_batch(seed) for seed in range(3)]
    for key in ("data", "label", "data_idx", "data_valid"):
        batches[0][key] = torch.cat([batches[0][key]] * 2)
    task = begin(
        batches, ListModel(), nn.CrossEntropyLoss(), seen := Seen(), OPTIMIZER__accumulate=3
    )
    for _ in batches:
        task.step()
    reference = ListModel()
    total = sum(
        weight * nn.functional.cross_entropy(reference(batch["data"])[0], batch["label"])
        for weight, batch in zip([0.5, 0.25, 0.25], batches, strict=True)
    )
    total.backward()
    torch.testing.assert_close(task.base_model.linear.weight.grad, reference.linear.weight.grad)
    assert task.progress.num_updates == 1
    assert seen.events.count("on_update") == 1
    assert seen.events.count("on_backward") == 3


def test_the_next_group_starts_from_zero() -> None:
    task = _begin()
    task.step()
    alone = ListModel()
    alone.load_state_dict(task.base_model.state_dict())
    batch = make_batch(1)
    nn.functional.cross_entropy(alone(batch["data"])[0], batch["label"]).backward()
    task.step()
    assert torch.equal(task.base_model.linear.weight.grad, alone.linear.weight.grad)


def test_the_loss_is_computed_in_single_precision_under_amp() -> None:
    seen = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.append((output.dtype, torch.is_autocast_enabled("cpu")))
        return nn.functional.cross_entropy(output, target)

    amp = {"USE_AMP": True, "AMP_TYPE": "pytorch", "AMP_DTYPE": "bfloat16"}
    _begin(loss, MODEL__AMP_PARAMS=amp).step()
    assert seen == [(torch.float32, False)]


def test_an_event_without_hooks_is_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    task = begin([make_batch(0)], ListModel(), nn.CrossEntropyLoss())
    announced: list[str] = []
    monkeypatch.setattr(type(task), "run_hooks", lambda self, event: announced.append(event))
    task.step()
    assert announced == []
