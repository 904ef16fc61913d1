"""Packages of trackers as their callers see them: runs on a server that is a dict."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

Row = tuple[Any, dict[str, Any]]  # step, values


class Away(Exception):
    pass


class FakePackage(ModuleType):
    """runs: by id, what the server has. away: each call of a run's raises."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.runs: dict[str, list[Row]] = {}
        self.calls: list[dict[str, Any]] = []
        self.scores: dict[str, float] = {}
        self.away = self.refuses = False
        self.ended: list[Any] = []  # what is given at the end of a start

    def steps(self, name: str) -> list[tuple[int, float]]:
        """All values of a metric in all runs."""
        return [
            (step, row[name]) for rows in self.runs.values() for step, row in rows if name in row
        ]


class SharedCalls(FakePackage):
    """A value that is sent twice is there twice."""

    def Image(self, data: Any) -> tuple[str, tuple[int, ...]]:
        return "image", data.shape

    def Histogram(self, np_histogram: Any) -> tuple[str, int]:
        return "histogram", len(np_histogram[0])

    def init(self, **arguments: Any) -> Any:
        if self.refuses:
            raise Away("not logged in")
        self.calls.append(arguments)
        rows = self.runs.setdefault(arguments.get("id") or arguments["name"], [])

        def log(values: dict[str, Any], step: int | None = None) -> None:
            if self.away:
                raise Away("the server is away")
            rows.append((step, values))

        run = SimpleNamespace(log=log, finish=lambda **given: self.ended.append(given))
        if self.__name__ == "wandb":
            run.summary = self.scores
        return run


class Mlflow(FakePackage):
    entities = SimpleNamespace(Metric=lambda *row: row)

    def MlflowClient(self, address: str | None) -> Any:
        def create_run(experiment: str, run_name: str) -> Any:
            self.runs[name := f"run{len(self.runs)}"] = []
            return SimpleNamespace(info=SimpleNamespace(run_id=name))

        def log_batch(name: str, metrics: list[Any]) -> None:
            if self.away:
                raise Away("the server is away")
            step = metrics[0][3] if metrics else None
            self.runs[name].append((step, {each[0]: each[1] for each in metrics}))

        def keep(name: str, config: Any, file: str) -> None:
            self.calls.append({"config": config})

        return SimpleNamespace(
            create_run=create_run, log_batch=log_batch, log_dict=keep,
            get_experiment_by_name=lambda name: None, create_experiment=lambda name: name,
            update_run=lambda name, status: self.runs[name], set_terminated=lambda name, status: self.ended.append(status),
            log_image=lambda name, image, key, step: self.runs[name].append((step, {key: "image"})),
        )  # fmt: skip


@pytest.fixture
def fake_package(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], FakePackage]:
    def install(name: str) -> FakePackage:
        package = Mlflow(name) if name == "mlflow" else SharedCalls(name)
        monkeypatch.setitem(sys.modules, name, package)
        return package

    return install


def entry(package: str, **more: Any) -> dict[str, Any]:
    named = {"name": "mlflow"} if package == "mlflow" else {"name": "tracker", "module": package}
    return {**named, **more}
