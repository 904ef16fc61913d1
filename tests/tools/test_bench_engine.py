"""The benchmark compares like with like: engine and plain loop make the same steps."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.tail import slow_but

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = ROOT / "tools" / "perf_measurement" / "bench_engine.py"
    spec = importlib.util.spec_from_file_location("bench_engine", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_engine"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", slow_but(["mlp"], ["mlp", "resnet18"]))
def test_the_engine_makes_the_steps_of_the_plain_loop(bench: ModuleType, name: str) -> None:
    case = bench.CASES[name]
    # In float64: the loop and the engine may round their sums in another order.
    batches = [torch.randn(8, *case.shape, dtype=torch.float64) for _ in range(3)]
    task = bench.engine_task(case, iter(batches))
    task.base_model.double()
    plain = case.plain().double()
    with torch.no_grad():
        for mine, theirs in zip(plain.parameters(), task.base_model.parameters(), strict=True):
            mine.copy_(theirs)
    expected = bench.plain_train.train_steps(
        plain, bench.make_optimizer(plain), batches, bench.TEMPERATURE, lambda step: bench.RATE
    )
    for _ in batches:
        task.step()
    task.on_end()
    losses = [entry / batch for entry, batch in zip(task.losses, [case.images] * 3, strict=True)]
    assert losses == pytest.approx([loss.item() for loss in expected], rel=1e-5)
    for mine, theirs in zip(plain.parameters(), task.base_model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", ["byol", "crops", "accumulate"])
def test_the_loops_by_hand_make_the_engines_steps(
    bench: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = bench.CASES[name]
    shape = (case.views * case.images, *case.shape)
    batches = [torch.randn(shape, dtype=torch.float64) for _ in range(4)]
    task = bench.engine_task(case, iter(batches))
    model = task.base_model.double()
    task.loss.double()
    plain, predictor = case.plain().double(), torch.nn.Linear(64, 64).double()
    mine = [*plain.parameters(), *(predictor.parameters() if name == "byol" else ())]
    before = [each.detach().clone() for each in model.parameters()]
    with torch.no_grad():
        for each, theirs in zip(mine, before, strict=True):
            each.copy_(theirs)
    monkeypatch.setattr(bench.nn, "Linear", lambda *sizes: predictor)
    case.by_hand(replace(case, plain=lambda: plain), iter(batches))
    for _ in batches:
        task.step()
    task.on_end()
    for each, theirs, start in zip(mine, model.parameters(), before, strict=True):
        torch.testing.assert_close(each, theirs)
        assert not torch.equal(each, start)


def test_a_race_times_every_contestant(
    bench: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = str(torch.get_num_threads())
    arguments = ["--case", "mlp", "--only", "sslengine", "--rounds", "2", "--scale", "0.03"]
    arguments += ["--clock", "cpu"]
    results = bench.main([*arguments, "--threads", threads])
    assert {name: len(rounds) for name, rounds in results["mlp"].items()} == {
        "plain": 2,
        "sslengine": 2,
    }
    assert all(seconds > 0 for rounds in results["mlp"].values() for seconds in rounds)
    assert "ms/step" in capsys.readouterr().out


def test_an_error_of_a_contestant_ends_the_race(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(case: object, batches: object) -> None:
        raise ArithmeticError("broken")

    monkeypatch.setitem(bench.CONTESTANTS, "sslengine", fails)
    with pytest.raises(ArithmeticError, match="broken"):
        bench.Race(bench.CASES["mlp"], ["plain", "sslengine"], turns=1).run()
