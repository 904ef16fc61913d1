"""Passes over a dataset without training: `predict`, `evaluate_loss`. Each sample counts once."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.data.batch.collators import Batch
from sslengine.data.given import Collate, DatasetFeed, LoaderFeed, make_feed, rows_of
from sslengine.distributed import process_group
from sslengine.distributed.collectives import gather_objects, sum_in_place
from sslengine.distributed.ranks import initialized, pick_device
from sslengine.engine.step import single_input_sample
from sslengine.errors import ConfigError, DataError, TrainingError, nearest
from sslengine.methods.foreign import takes_sample
from sslengine.methods.step import Step
from sslengine.precision import Precision, build_precision, widest

DEVICES = ("auto", "gpu", "cuda", "mps", "cpu")
Feed = DatasetFeed | LoaderFeed


def choose_device(device: str | torch.device | None) -> torch.device:
    """Return the device; for None this rank's GPU if there is one, else the CPU."""
    if device is None or str(device) in ("auto", "gpu", "cuda"):
        return pick_device("auto" if device is None else str(device).replace("cuda", "gpu"))
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ConfigError(
            f"device: expected {', '.join(DEVICES)} or a device of torch such as cuda:1; got "
            f"{device!r}. {nearest(str(device).partition(':')[0], DEVICES)}".rstrip()
        ) from error


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
    with _reading(data, batch_size, collate_fn, workers, device, seed) as feed:
        numbers = build_precision(precision, feed.device, where="precision")
        outputs = predict_batches(model.to(feed.device), feed, numbers)
    return combine(outputs, collate, transform)


def predict_batches(model: nn.Module, feed: Feed, precision: Precision) -> list[Any]:
    """Return the outputs of all batches in the order of the dataset, on the host. Collective."""
    mine = [
        tree_map(lambda value: value.cpu() if isinstance(value, Tensor) else value, output)
        for output, _ in _outputs(model, feed, precision)
    ]
    return gather_batches(mine)


def gather_batches(mine: list[Any]) -> list[Any]:
    """Put what each rank has of its batches in the order of the dataset. Collective."""
    # Each step reads one stretch of the dataset over all ranks.
    return [output for step in zip(*gather_objects(mine)) for output in step]


def combine(
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
    """Return the mean loss per sample, over all ranks, in eval mode; a dict if the loss is one."""
    with _reading(data, batch_size, collate_fn, workers, device, seed) as feed, evaluating(loss):
        if isinstance(loss, nn.Module):
            loss.to(feed.device)
        numbers = build_precision(precision, feed.device, where="precision")
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
        wrong = [part.shape for part in parts if part.numel() != 1]
        if wrong:
            name = getattr(loss, "__name__", type(loss).__name__)
            raise TrainingError(
                f"the loss must be one number, {name} returns a tensor of shape "
                f"{tuple(wrong[0])}: take its mean or its sum."
            )
        values = torch.stack([part.detach().to(total).reshape(()) for part in parts])
        total = total + values * rows_of(batch["data"])
    means = (sum_in_place(total) / feed.num_samples).tolist()
    return means[0] if names is None else dict(zip(names, means, strict=True))


@torch.no_grad()
def _outputs(model: nn.Module, feed: Feed, precision: Precision) -> Iterator[tuple[Any, Batch]]:
    """Yield (output, batch). A list of one output is unwrapped, as in train steps."""
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
    """Share the batches of `data` among the ranks in order, on the device."""
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
