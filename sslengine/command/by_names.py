"""`fit` by names: fit("~/photos", "simclr", "resnet50") is `sslengine.train`.

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
from sslengine.command.in_memory import Data
from sslengine.command.recipes import methods
from sslengine.data.given import Collate
from sslengine.python import fit as of_objects
from sslengine.python.fit import Loss
from sslengine.python.session import Session


@overload
def fit(
    data: Data,
    method: str | None = None,
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
    out: str | Path | None = None,
    seed: int = 0,
    quiet: bool = False,
    values: Mapping[str, Any] | None = None,
) -> Session: ...
def fit(*given: Any, **options: Any) -> Session | TrainedRun:
    if any(isinstance(each, nn.Module) for each in (*given[:1], options.get("model"))):
        return of_objects.fit(*given, **_renamed(options))
    if "data" in options:
        return train(options.pop("data"), *given, **options)
    if len(given) > 1 and _is_method_first(*given[:2]):
        given = (given[1], given[0], *given[2:])
    return train(*given, **options)


def _is_method_first(first: Any, second: Any) -> bool:
    """Is it fit(method, data), the order of version 0.1?"""
    if not isinstance(first, str) or second in (None, *methods()):
        return False
    there = not isinstance(second, str) or "://" in second or Path(second).expanduser().exists()
    return first in methods() or there


def _renamed(options: Mapping[str, Any]) -> dict[str, Any]:
    """With today's names for those of version 0.1."""
    named = {{"folder": "out", "settings": "values"}.get(name, name): value
             for name, value in options.items()}  # fmt: skip
    if "verbose" in named:
        named["quiet"] = not named.pop("verbose")
    return named


# Not as a decorator: editors would not see the overloads.
functools.update_wrapper(fit, of_objects.fit, assigned=["__doc__"], updated=[])
