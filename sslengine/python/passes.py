"""Passes over a dataset without training: `predict`, `evaluate_loss`. Each sample counts once."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.config.components import owns_network
from sslengine.data.batch.collators import Batch
from sslengine.data.given import Collate, DatasetFeed, LoaderFeed, make_feed, rows_of
from sslengine.distributed import process_group
from sslengine.distributed.collectives import gather_objects, sum_in_place
from sslengine.distributed.ranks import initialized, pick_device
from sslengine.engine.loss_dict import LossDictTrainStep, are_losses, sum_of_losses
from sslengine.engine.step import expect_numbers, single_input_sample
from sslengine.errors import DataError, TrainingError
from sslengine.methods.foreign import takes_sample
from sslengine.methods.step import Step
from sslengine.methods.whole import Batch as Views
from sslengine.precision import Precision, build_precision, widest

Feed = DatasetFeed | LoaderFeed


def choose_device(device: str | torch.device | None) -> torch.device:
    """Return the device; for None this rank's GPU if there is one, else the CPU."""
    if device is None or str(device) in ("auto", "gpu", "cuda"):
        return pick_device("auto" if device is None else str(device).replace("cuda", "gpu"))
    return torch.device(device)


def join_others(device: torch.device) -> None:
    """Join the ranks that torchrun has started, if any, until Python ends."""
    if initialized() or not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        return
    process_group.join("nccl", device, timeout_minutes=30.0)
    atexit.register(process_group.leave)


def predict(
    model: nn.Module,
    data: Any,
    *,
    collate: Callable[[list[Any]], Any] | None = None,
    transform: Callable[[Any], Any] | None = None,
    batch_size: int = 64,
    collate_fn: Collate | None = None,
    workers: int = 0,
    device: str | torch.device | None = None,
    precision: str = "fp32",
    seed: int = 0,
) -> Any:
    """Return the model's outputs for all samples of `data`, in order, on the CPU, on every rank.

    data: a dataset, or a loader of batches; of (input, target) the model gets the input.
    collate: combines the list of all batches' outputs; default: concatenate their tensors.
    transform: applied to the combined outputs before they are returned.
    """
    with _read(data, batch_size, collate_fn, workers, device, seed) as feed:
        numbers = build_precision(precision, feed.device, where="precision")
        return predict_batches(model.to(feed.device), feed, numbers, collate, transform)


def predict_batches(
    model: nn.Module,
    feed: Feed,
    precision: Precision,
    collate: Callable[[list[Any]], Any] | None = None,
    transform: Callable[[Any], Any] | None = None,
) -> Any:
    """Combine the outputs of all batches, in the order of the dataset, on the host. Collective."""
    mine = [
        tree_map(lambda value: value.cpu() if isinstance(value, Tensor) else value, output)
        for output, _ in _outputs(model, feed, precision)
    ]
    combined = (collate or concatenate)(gather_batches(mine))
    return combined if transform is None else transform(combined)


def gather_batches(mine: list[Any]) -> list[Any]:
    """Put what each rank has of its batches in the order of the dataset. Collective."""
    # Each step reads one stretch of the dataset over all ranks.
    return [output for step in zip(*gather_objects(mine)) for output in step]


def concatenate(outputs: Sequence[Any]) -> Any:
    """Concatenate batches of rows, in nested containers of any form."""
    form = tree_flatten(outputs[0])[1]
    columns = list(zip(*(tree_flatten(output)[0] for output in outputs), strict=True))
    if not all(isinstance(value, Tensor) and value.ndim for column in columns for value in column):
        raise DataError(
            "predict: the model's outputs are not all tensors with a row for each sample: pass "
            "collate=... to combine those of all batches."
        )
    return tree_unflatten([torch.cat(column) for column in columns], form)


def evaluate_loss(
    model: nn.Module,
    loss: Callable[..., Any],
    data: Any,
    *,
    batch_size: int = 64,
    collate_fn: Collate | None = None,
    workers: int = 0,
    device: str | torch.device | None = None,
    precision: str = "fp32",
    seed: int = 0,
) -> float | dict[str, float]:
    """Return the mean loss per sample, over all ranks, in eval mode; a dict if the loss is one."""
    with _read(data, batch_size, collate_fn, workers, device, seed) as feed:
        numbers = build_precision(precision, feed.device, where="precision")
        means = mean_losses(model.to(feed.device), loss, feed, numbers)
    return means if len(means) > 1 else means["loss"]


def mean_losses(
    model: nn.Module, loss: Callable[..., Any] | None, feed: Feed, precision: Precision
) -> dict[str, float]:
    """Return the mean of the loss and its parts per sample, in eval mode. Collective.

    loss: None of a model that gives its losses.
    """
    if isinstance(loss, nn.Module):
        loss.to(feed.device)
    total, given = torch.zeros((), dtype=widest(feed.device), device=feed.device), dict[str, Any]()
    with torch.no_grad(), _evaluate(model), _evaluate(loss):
        for batch in feed.batches():
            given = expect_numbers(*_lose(model, loss, batch, precision))
            values = torch.stack([each.detach().to(total).reshape(()) for each in given.values()])
            total = total + values * rows_of(batch["data"])
    means = (sum_in_place(total) / feed.num_samples).tolist()
    return dict(zip(given, means, strict=True))


def _lose(model: nn.Module, loss: Any, batch: Batch, precision: Precision) -> tuple[Any, str]:
    """Return the losses of a batch, and the name of what gives them."""
    step = Step.alone(train=False, precision=precision)
    if loss is not None:
        with precision.autocast():
            output = _unwrap(model(batch["data"][0]))
        sample = single_input_sample(batch, ["data"], ["label"])
        output, name = precision.as_full(output), getattr(loss, "__name__", type(loss).__name__)
        return loss(output, *((sample, step) if takes_sample(loss) else (sample["target"],))), name
    name = type(model).__name__
    if owns_network(type(model)):
        return model(Views(single_input_sample(batch, ["data"], ["label"])), step), name
    with precision.autocast():
        found = model(LossDictTrainStep.make_sample(batch, ["data"], ["label"])["input"])
    if not are_losses(found):
        raise TrainingError(
            f"{name} gives predictions in eval mode, and no losses: there is none over a set."
        )
    return sum_of_losses(precision.as_full(found), name), name


@torch.no_grad()
def _outputs(model: nn.Module, feed: Feed, precision: Precision) -> Iterator[tuple[Any, Batch]]:
    """Yield (output, batch). A list of one output is unwrapped, as in train steps."""
    with _evaluate(model):
        for batch in feed.batches():
            with precision.autocast():
                output = model(batch["data"][0])
            yield _unwrap(precision.as_full(output)), batch


def _unwrap(output: Any) -> Any:
    return output[0] if isinstance(output, list) and len(output) == 1 else output


@contextmanager
def _read(
    data: Any,
    batch_size: int,
    collate_fn: Collate | None,
    workers: int,
    device: str | torch.device | None,
    seed: int,
) -> Iterator[Feed]:
    """Share the batches of `data` among the ranks in order, on the device."""
    place = choose_device(device)
    join_others(place)
    feed = make_feed(data, batch_size, shuffle=False, whole=True, seed=seed, device=place,
                     collate_fn=collate_fn, workers=workers)  # fmt: skip
    with closing(feed):
        yield feed


@contextmanager
def _evaluate(module: Any) -> Iterator[None]:
    """Put a module into eval mode for the block; a function has none."""
    mode = getattr(module, "training", None)
    try:
        if mode is not None:
            module.eval()
        yield
    finally:
        if mode is not None:
            module.train(mode)
