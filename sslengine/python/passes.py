"""Passes over a dataset without training: `predict`, `evaluate_loss`. Each sample counts once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.data.batch.collators import Batch
from sslengine.data.given import Collate, DatasetFeed, LoaderFeed, make_feed, rows_of
from sslengine.distributed.collectives import gather_objects, sum_in_place
from sslengine.errors import DataError, TrainingError
from sslengine.methods.foreign import takes_sample
from sslengine.methods.step import Step
from sslengine.precision import Precision, widest
from sslengine.python.place import choose_device, join_others, make_precision
from sslengine.train_steps.samples import single_input_sample

Feed = DatasetFeed | LoaderFeed


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
    """The model's outputs for all samples of `data`, in order, on the CPU, on every rank.

    data: a dataset, or a loader of batches; of (input, target) the model gets the input.
    collate: combines the list of all batches' outputs; default: concatenate their tensors.
    transform: applied to the combined outputs before they are returned.
    """
    with _reading(data, batch_size, collate_fn, workers, device, seed) as feed:
        numbers = make_precision(precision, feed.device)
        outputs = predict_feed(model.to(feed.device), feed, numbers)
    return finish(outputs, collate, transform)


def predict_feed(model: nn.Module, feed: Feed, precision: Precision) -> list[Any]:
    """The outputs of all batches in the order of the dataset, on the host. Collective."""
    mine = [
        tree_map(lambda value: value.cpu() if isinstance(value, Tensor) else value, output)
        for output, _ in _outputs(model, feed, precision)
    ]
    return of_all_ranks(mine)


def of_all_ranks(mine: list[Any]) -> list[Any]:
    """What each rank has of its batches, in the order of the dataset. Collective."""
    # Interleave the ranks' outputs: each step reads one stretch of the dataset over all ranks.
    return [output for step in zip(*gather_objects(mine)) for output in step]


def finish(
    outputs: list[Any],
    collate: Callable[[list[Any]], Any] | None,
    transform: Callable[[Any], Any] | None,
) -> Any:
    joined = (collate or concatenate)(outputs)
    return joined if transform is None else transform(joined)


def concatenate(outputs: Sequence[Any]) -> Any:
    """Concatenate batches of rows, in nested containers of any form."""
    form = tree_flatten(outputs[0])[1]
    columns = zip(*(tree_flatten(output)[0] for output in outputs), strict=True)
    parts = list(columns)
    if not all(isinstance(value, Tensor) and value.ndim for part in parts for value in part):
        raise DataError(
            "predict: the model's outputs are not all tensors with a row for each sample: pass "
            "collate=... to combine those of all batches."
        )
    return tree_unflatten([torch.cat(part) for part in parts], form)


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
    """The mean loss per sample, over all ranks, in eval mode; a dict where the loss gives one."""
    with _reading(data, batch_size, collate_fn, workers, device, seed) as feed, evaluating(loss):
        if isinstance(loss, nn.Module):
            loss.to(feed.device)
        numbers = make_precision(precision, feed.device)
        return _mean_loss(model.to(feed.device), loss, feed, numbers)


def _mean_loss(
    model: nn.Module, loss: Callable[..., Any], feed: Feed, precision: Precision
) -> float | dict[str, float]:
    names: Sequence[str] | None = None
    with_sample, step = takes_sample(loss), Step.alone(train=False, precision=precision)
    total = torch.zeros((), dtype=widest(feed.device), device=feed.device)
    for output, batch in _outputs(model, feed, precision):
        output = precision.as_full(output)
        if with_sample:
            given = loss(output, single_input_sample(batch, ["data"], ["label"]), step)
        else:
            given = loss(output, batch["label"][0])
        names = tuple(given) if isinstance(given, Mapping) else None
        parts = list(given.values()) if isinstance(given, Mapping) else [given]
        for part in parts:
            if part.numel() != 1:
                raise TrainingError(not_a_scalar(loss, part))
        values = torch.stack([part.detach().to(total).reshape(()) for part in parts])
        total = total + values * rows_of(batch["data"])
    means = (sum_in_place(total) / feed.num_samples).tolist()
    return means[0] if names is None else dict(zip(names, means, strict=True))


def not_a_scalar(loss: Any, value: Tensor) -> str:
    name = getattr(loss, "__name__", type(loss).__name__)
    return (
        f"the loss must be one number, {name} returns a tensor of shape {tuple(value.shape)}: "
        f"take its mean or its sum."
    )


@torch.no_grad()
def _outputs(model: nn.Module, feed: Feed, precision: Precision) -> Iterator[tuple[Any, Batch]]:
    """(output, batch) of all batches. A list of one output is unwrapped, as in train steps."""
    with evaluating(model):
        for batch in feed.batches():
            with precision.autocast():
                output = model(batch["data"][0])
            output = precision.as_full(output)
            yield (output[0] if isinstance(output, list) and len(output) == 1 else output), batch


@contextmanager
def _reading(
    data: Any,
    batch_size: int,
    collate_fn: Collate | None,
    workers: int,
    device: str | torch.device | None,
    seed: int,
) -> Iterator[Feed]:
    """The batches of `data` in order, shared among the ranks, on the device."""
    place = choose_device(device)
    join_others(place)
    feed = make_feed(data, batch_size, shuffle=False, whole=True, seed=seed, device=place,
                     collate_fn=collate_fn, workers=workers)  # fmt: skip
    try:
        yield feed
    finally:
        feed.close()


@contextmanager
def evaluating(module: Any) -> Iterator[None]:
    """Put a module into eval mode for the block."""
    mode = module.training if isinstance(module, nn.Module) else None
    try:
        if mode is not None:
            module.eval()
        yield
    finally:
        if mode is not None:
            module.train(mode)
