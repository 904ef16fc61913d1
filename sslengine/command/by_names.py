"""`fit` by names: fit("simclr", "~/photos", model="resnet50") is `sslengine.train`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, cast, overload

from sslengine.command.api import TrainedRun, train
from sslengine.python import fit as of_objects
from sslengine.python.session import Session

Objects = ParamSpec("Objects")
Options = ParamSpec("Options")


class Fit(Protocol[Objects, Options]):
    @overload
    def __call__(
        self, method: str, data: str | Path, /, *args: Options.args, **kwargs: Options.kwargs
    ) -> TrainedRun: ...
    @overload
    def __call__(self, *args: Objects.args, **kwargs: Objects.kwargs) -> Session: ...


def or_by_names(
    train: Callable[Concatenate[str | Path, str | None, Options], TrainedRun],
) -> Callable[[Callable[Objects, Session]], Fit[Objects, Options]]:
    """A function of objects that calls `train` if a name and a path come first."""

    def decorate(objects: Callable[Objects, Session]) -> Fit[Objects, Options]:
        @functools.wraps(objects)
        def fit(*given: Any, **options: Any) -> Session | TrainedRun:
            named = options.get("data")
            if len(given) == 1 and isinstance(named, str | Path):
                given = (*given, options.pop("data"))
            match given:
                case str(method), str() | Path() as data, *rest:
                    return train(data, method, *rest, **options)
            return objects(*given, **options)

        return cast(Fit[Objects, Options], fit)

    return decorate


fit = or_by_names(train)(of_objects.fit)
