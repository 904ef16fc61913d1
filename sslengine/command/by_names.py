"""`fit` by names: fit("simclr", "~/photos", model="resnet50") is `sslengine.train`.

The two signatures are those of `sslengine.train` and of `sslengine.python.fit.fit`, written out so
that every editor shows them; a test compares them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import torch
from torch import nn

from sslengine.command.api import TrainedRun, train
from sslengine.command.in_memory import Data, is_data
from sslengine.data.given import Collate
from sslengine.python import fit as of_objects
from sslengine.python.fit import Loss
from sslengine.python.session import Session


@overload
def fit(
    method: str,
    data: Data,
    model: str | None = None,
    *,
    recipe: str | None = None,
    out: str | Path | None = None,
    epochs: int | None = None,
    size: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    val: float | None = None,
    group: str | None = None,
    image_column: str | None = None,
    label_column: str | Sequence[str] | None = None,
    stream: bool = False,
    length: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    gpus: int | None = None,
    precision: str | None = None,
    workers: int | None = None,
    pretrained: bool = False,
    weights: str | Path | None = None,
    freeze_trunk: int | None = None,
    plugins: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
    config_dir: Sequence[str] = (),
) -> TrainedRun: ...
@overload
def fit(
    model: nn.Module,
    loss: Loss | None,
    data: Any,
    optimizer: torch.optim.Optimizer | Mapping[str, Any] | None = None,
    *,
    epochs: int | None = None,
    iterations: int | None = None,
    validation: Any = None,
    test: Any = None,
    batch_size: int = 32,
    shuffle: bool = True,
    drop_last: bool = False,
    collate_fn: Collate | None = None,
    workers: int = 0,
    accumulate: int = 1,
    hooks: Sequence[Any] = (),
    device: str | torch.device | None = None,
    precision: str = "fp32",
    folder: str | Path | None = None,
    seed: int = 0,
    verbose: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Session: ...
def fit(*given: Any, **options: Any) -> Session | TrainedRun:
    named, rest = dict(options), list(given)
    if rest and isinstance(rest[0], str):
        named["method"] = rest.pop(0)
    if rest and "method" in named and "data" not in named:
        named["data"] = rest.pop(0)
    if isinstance(named.get("method"), str) and _is_no_loss(named.get("data")):
        return train(named.pop("data"), named.pop("method"), *rest, **named)
    return of_objects.fit(*given, **options)


def _is_no_loss(data: Any) -> bool:
    return is_data(data) or not (data is None or callable(data))


# Not as a decorator: editors would not see the overloads.
functools.update_wrapper(fit, of_objects.fit, assigned=["__doc__"], updated=[])
