"""A step, stage by stage."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sslengine.engine.step import multi_input_sample, single_input_sample
from sslengine.errors import DataError, TrainingError
from sslengine.hooks.timing import STAGES
from sslengine.python.fit import PythonTask
from tests.engine.tasks import ListModel, Seen, at, begin, make_batch


def test_a_train_step_is_plain_pytorch_with_events() -> None:
    batches = [make_batch(seed) for seed in range(3)]
    task = begin(batches, ListModel(), nn.CrossEntropyLoss(), seen := Seen())
    model = ListModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(batches):
        task.step()
        loss = nn.functional.cross_entropy(model(batch["data"])[0], batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.equal(task.base_model.linear.weight, model.linear.weight)
        assert seen.parts[number]["loss"] == loss.item()
    assert seen.events[:4] == ["on_forward", "on_loss_and_meter", "on_backward", "on_update"]
    assert task.progress.num_updates == 3


def test_a_test_step_changes_nothing_and_fires_no_train_events() -> None:
    task = begin([make_batch()], ListModel(), nn.CrossEntropyLoss(), seen := Seen(), test=True)
    task.step()
    assert torch.equal(task.base_model.linear.weight, ListModel().linear.weight)
    assert task.base_model.linear.weight.grad is None
    assert seen.events == ["on_forward", "on_loss_and_meter"]
    assert not task.last_batch.model_output.requires_grad


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


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        (lambda output, target: {"a": output.sum(), "b": output.sum()}, "'a', 'b'.*'loss'"),
        (lambda output, target: output, r"loss: \(4, 2\)"),
        (lambda output, target: {"loss": output.sum(), "each": output}, r"each: \(4, 2\)"),
        (lambda output, target: None, "loss: None"),
        (lambda output, target: {"loss": output.sum(), "size": 0.5}, r"size: 0\.5"),
        (lambda output, target: output.sum().detach(), "no gradient"),
    ],
)
def test_a_loss_that_is_none_is_refused(loss: Any, named: str) -> None:
    with pytest.raises(TrainingError, match=named):
        _begin(loss).step()


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


def test_inputs_reach_the_model_by_name() -> None:
    batch = make_batch()
    # The feed knows a batch's size by its `data`, which this step leaves alone.
    batch |= {"images": batch["data"], "patches": batch["data"] * 2}
    task = begin(
        [batch], ListModel(inputs=6), nn.CrossEntropyLoss(), seen := Seen(),
        TRAINER__TRAIN_STEP_NAME="multi_input_train_step",
        DATA__TRAIN__INPUT_KEY_NAMES=["images", "patches"],
    )  # fmt: skip
    task.step()
    both = torch.cat([batch["images"], batch["patches"]], dim=1)
    loss = nn.functional.cross_entropy(ListModel(inputs=6).linear(both), batch["label"])
    assert seen.parts == [{"loss": loss.item()}]
    assert task.progress.num_updates == 1


IMAGES, PATCHES, LABELS = torch.ones(2, 3), torch.zeros(6, 3), torch.tensor([1, 2])
BATCH = {
    "images": [IMAGES],
    "patches": [PATCHES],
    "label": [LABELS],
    "data_valid": [torch.ones(2)],
    "mask": [torch.zeros(2)],
}


@pytest.mark.parametrize("build", [single_input_sample, multi_input_sample])
def test_several_inputs_are_nested_by_name(build: Any) -> None:
    sample = build(BATCH, ["patches", "images"], ["label"])
    assert sample["input"] == {"patches": PATCHES, "images": IMAGES}
    assert sample["mask"] is BATCH["mask"][0]
    assert sample["data_valid"] is BATCH["data_valid"][0]


@pytest.mark.parametrize(
    ("batch", "inputs", "targets", "message"),
    [
        ([IMAGES], ["data"], ["label"], "COLLATE_FUNCTION: expected a dict of lists"),
        (BATCH, ["image"], ["label"], "INPUT_KEY_NAMES: the batch has no 'image'"),
        (BATCH, ["images"], ["labels"], "TARGET_KEY_NAMES: the batch has no 'labels'"),
        ({"data": [IMAGES, IMAGES], "label": [LABELS]}, ["data"], ["label"], r"batch\['data'\] must be a list"),
        ({"data": [IMAGES], "label": [LABELS], "x": 3}, ["data"], ["label"], r"batch\['x'\] must be a list"),
    ],
)  # fmt: skip
def test_a_batch_that_breaks_the_contract(
    batch: Any, inputs: list[str], targets: list[str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        single_input_sample(batch, inputs, targets)
