"""`sslengine.fit`. References are the plain loop of toys.py."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, WeightedRandomSampler

import sslengine
from sslengine.distributed.ranks import rank
from sslengine.errors import (
    ConfigError,
    DataError,
    TrainingError,
)
from sslengine.hooks.events import Hook
from sslengine.methods.base import Method
from sslengine.python.fit import fit
from sslengine.python.session import Session
from tests.command.photos import write_photos
from tests.python.toys import (
    COUNT,
    Noisy,
    Points,
    batches,
    net,
    plain_loop,
    same,
    sgd,
    square,
)
from tests.ranks import RankPool


@pytest.mark.parametrize("quiet", [False, True])
def test_progress_is_shown_as_of_a_run(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    fit(model, Points(), loss=square, optimizer=sgd(model), epochs=2, validation=Points(), device="cpu",
        quiet=quiet)  # fmt: skip
    lines = [
        line.split("  ")[0] for line in capsys.readouterr().out.splitlines() if "step" not in line
    ]
    assert lines == ([] if quiet else ["train 1/2", "test 1/2", "train 2/2", "test 2/2"])


class Cut(Hook):
    def __init__(self, after: int) -> None:
        self.after = after

    def on_step(self, task: Any) -> None:
        if task.train and task.iteration == self.after:
            raise KeyboardInterrupt


def test_importing_the_package_loads_nothing() -> None:
    code = "import sys, sslengine; sslengine.__version__; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert {"fit", "predict", "evaluate_loss"} <= set(dir(sslengine))
    assert sslengine.fit is fit
    with pytest.raises(AttributeError, match="no attribute 'fti'"):
        sslengine.fti  # noqa: B018


@pytest.mark.parametrize("form", ["list", "loader"])
def test_it_is_the_plain_loop(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    points = Points()
    data: Any = batches(points) if form == "list" else DataLoader(points, batch_size=4)
    ours, theirs = net(), net()
    expected = plain_loop(theirs, data, sgd(theirs), epochs=4)
    session = fit(ours, data, loss=square, optimizer=sgd(ours), epochs=4, device="cpu")
    assert session.history.losses() == expected
    assert same(ours, theirs)
    assert session.model is ours
    assert session.complete
    assert list(tmp_path.iterdir()) == []


def test_history_and_results() -> None:
    model = net()
    points = Points()
    session = fit(model, batches(points), loss=square, optimizer=sgd(model), iterations=4, validation=points,
                  device="cpu")  # fmt: skip
    assert [each["iteration"] for each in session.history.steps] == [1, 2, 3, 4]
    assert [each["epoch"] for each in session.history.steps] == [0, 0, 0, 1]
    assert session.history.steps[0].keys() == {"iteration", "epoch", "loss", "lr"}
    epochs = [(each["epoch"], each["split"], each["iteration"]) for each in session.history.epochs]
    assert epochs == [(0, "train", 3), (0, "test", 3), (1, "train", 4), (1, "test", 4)]
    with torch.no_grad():
        expected = square(model(points.x), points.y).item()
    assert session.results["test"]["loss"] == pytest.approx(expected, rel=1e-6)
    assert session.iteration == 4


class See(Hook):
    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def on_step(self, task: Any) -> None:
        self.seen.append(task.last_batch.indices.tolist())


def test_each_sample_counts_once_an_epoch() -> None:
    model, see = net(), See()
    fit(
        model,
        Points(),
        loss=square,
        optimizer=sgd(model),
        epochs=2,
        batch_size=4,
        hooks=[see],
        device="cpu",
    )
    seen = see.seen
    assert [len(each) for each in seen] == [3, 3, 4] * 2
    epochs = [list(chain(*seen[:3])), list(chain(*seen[3:]))]
    assert epochs[0] != epochs[1]
    assert [sorted(each) for each in epochs] == [list(range(COUNT))] * 2


def test_the_callers_random_streams_stay() -> None:
    model, before = net(), torch.get_rng_state()
    fit(model, Noisy(), loss=square, optimizer=sgd(model), epochs=1, device="cpu")
    assert torch.equal(torch.get_rng_state(), before)


def _noisy(form: str) -> Any:
    return Noisy() if form == "set" else DataLoader(Noisy(), batch_size=4, shuffle=True)


def _fourth_powers(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).pow(4).mean()


def test_a_run_that_resumes_with_another_loss_tells_it(tmp_path: Path) -> None:
    def resume(loss: Any, epochs: int) -> str:
        model, log = net(), tmp_path / "log.txt"
        before = len(log.read_text()) if log.exists() else 0
        fit(model, Points(), loss=loss, optimizer=sgd(model), epochs=epochs, device="cpu",
            out=tmp_path)  # fmt: skip
        return log.read_text()[before:]

    assert "other code" not in resume(square, 1) + resume(partial(square), 2)
    assert "loss: other code than when the checkpoint was written" in resume(_fourth_powers, 3)
    # What another version of torch has in it is not the user's edit: the name counts.
    assert "loss: other code" in resume(F.mse_loss, 4)
    assert "other code" not in resume(F.mse_loss, 5)
    assert "loss: other code" in resume(F.l1_loss, 6)


@pytest.mark.parametrize("form", ["set", "loader"])
def test_a_killed_run_goes_on_bit_by_bit(form: str, tmp_path: Path) -> None:
    common: dict[str, Any] = {
        "epochs": 4, "device": "cpu", "batch_size": 4,
        "values": {"CHECKPOINT": {"CHECKPOINT_ITER_FREQUENCY": 1}},
    }  # fmt: skip
    whole = net(dropout=0.5)
    expected = fit(
        whole, _noisy(form), loss=square, optimizer=sgd(whole), **common
    ).history.losses()
    model = net(dropout=0.5)
    with pytest.raises(KeyboardInterrupt):
        fit(
            model,
            _noisy(form),
            loss=square,
            optimizer=sgd(model),
            out=tmp_path,
            hooks=[Cut(5)],
            **common,
        )
    model = net(seed=1, dropout=0.5)
    rest = fit(model, _noisy(form), loss=square, optimizer=sgd(model), out=tmp_path, **common)
    made = len(rest.history.steps)
    assert 7 <= made < 12
    assert rest.history.losses() == expected[-made:]
    assert same(model, whole)
    again = fit(model, _noisy(form), loss=square, optimizer=sgd(model), out=tmp_path, **common)
    assert again.complete
    assert again.iteration == 12
    assert again.history.steps == []
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert max(line["iteration"] for line in lines) == 12


def test_an_optimizer_by_settings_follows_its_schedule() -> None:
    lr = {"name": "cosine", "start_value": 0.5, "end_value": 0.0, "update_interval": "step"}
    settings = {"name": "sgd", "weight_decay": 0.0, "param_schedulers": {"lr": lr}}
    session = fit(
        net(), batches(Points()), loss=square, optimizer=settings, iterations=4, device="cpu"
    )
    rates = [each["lr"] for each in session.history.steps]
    assert rates == pytest.approx([0.25 * (1 + math.cos(math.pi * k / 4)) for k in range(4)])


def test_a_model_that_gives_its_losses_itself() -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, batch: Any) -> dict[str, Tensor]:
            return {"square": square(self.net(batch["data"]), batch["label"])}

    ours, theirs = Own(), net()
    expected = plain_loop(theirs, batches(Points()), sgd(theirs), epochs=1)
    session = fit(ours, batches(Points()), optimizer=sgd(ours), epochs=1, device="cpu")
    assert session.history.losses() == pytest.approx(expected, rel=1e-6)


def test_a_model_that_gives_no_loss_in_eval_mode() -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, batch: Any) -> Any:
            rows = self.net(batch["data"])
            return {"square": square(rows, batch["label"])} if self.training else rows

    model = Own()
    session = fit(model, batches(Points()), optimizer=sgd(model), epochs=1, device="cpu")
    with pytest.raises(TrainingError, match="Own gives predictions in eval mode"):
        session.evaluate_loss("train")


def _fit(count: int, how: dict[str, Any]) -> tuple[list[float], list[Tensor], list[int]]:
    model, see = net(), See()
    how = {"data": Points(count), **how}
    session = fit(model, loss=square, optimizer=sgd(model), device="cpu", hooks=[see], **how)
    return session.history.losses(), list(model.parameters()), [*chain(*see.seen)]


@pytest.mark.parametrize("how", [{"epochs": 2}, {"epochs": 3, "accumulate": 2}])
def test_two_ranks_are_one_also_where_the_set_does_not_divide(
    two_ranks: RankPool, how: dict[str, Any]
) -> None:
    count = 11
    losses, weights, seen = _fit(count, {**how, "batch_size": 4})
    (one, ours, mine), (two, others, theirs) = two_ranks.run(_fit, count, {**how, "batch_size": 2})
    assert one == two
    assert one == pytest.approx(losses, rel=1e-6)
    for first, second, expected in zip(ours, others, weights):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, expected, rtol=1e-12, atol=1e-14)
    assert sorted(mine + theirs) == sorted(seen)
    assert sorted(seen) == sorted(list(range(count)) * how["epochs"])


def _seen_of_a_loader(number: int) -> list[int]:
    how = {"epochs": 1, "data": DataLoader(Points(), batch_size=2)}
    return _fit(COUNT, how)[2]


def test_a_dataloader_of_torchs_samplers_is_shared_out(two_ranks: RankPool) -> None:
    one, two = two_ranks.run(_seen_of_a_loader, 0)
    assert sorted(one + two) == list(range(COUNT))
    assert (one, two) == (sorted(one), sorted(two))  # it does not shuffle


def _unequal_loaders(number: int) -> str:
    model = net()
    try:
        fit(
            model,
            batches(Points(8 if rank() else 4)),
            loss=square,
            optimizer=sgd(model),
            epochs=1,
            device="cpu",
        )
    except DataError as error:
        return str(error)
    return ""


def test_ranks_of_unequal_length(two_ranks: RankPool) -> None:
    for text in two_ranks.run(_unequal_loaders, 0):
        assert "ranks have different numbers of batches, 1, 2" in text


def _calls(**changes: Any) -> Session:
    model = net()
    given: dict[str, Any] = {
        "loss": square, "data": batches(Points()), "optimizer": sgd(model), "epochs": 1,
        "device": "cpu", **changes,
    }  # fmt: skip
    return fit(
        model, given.pop("data"), loss=given.pop("loss"), optimizer=given.pop("optimizer"), **given
    )


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"data": "~/photos"}, ConfigError, r"~/photos.*sslengine.train"),
        ({"epochs": None}, ConfigError, r"config.OPTIMIZER.num_epochs"),
        ({"iterations": 5}, ConfigError, r"config.OPTIMIZER: .*num_iterations"),
        ({"data": iter(batches(Points()))}, DataError, r"data: .* list_iterator"),
        ({"data": []}, DataError, r"data: the loader has no batches"),
        ({"data": [(torch.ones(1), 1, 2)]}, DataError, r"got a tuple of 3. Give a collate_fn"),
        ({"loss": lambda o, t: (o - t) ** 2}, TrainingError, r"one number.*\(4, 1\)"),
        ({"optimizer": sgd(net())}, ConfigError, r"optimizer: it has parameters that are neither"),
    ],
)
def test_what_cannot_be_is_told(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        _calls(**changes)


def test_a_loader_with_an_order_of_its_own_has_no_folder(tmp_path: Path) -> None:
    loader = DataLoader(Points(), shuffle=True, generator=torch.Generator())
    with pytest.raises(DataError, match="the DataLoader has its own `generator`"):
        _calls(data=loader, out=tmp_path)
    drawn = WeightedRandomSampler([1.0] * 10, 10, generator=torch.Generator())
    for order in ({"sampler": drawn}, {"batch_sampler": BatchSampler(drawn, 4, drop_last=False)}):
        with pytest.raises(DataError, match="the WeightedRandomSampler has its own `generator`"):
            _calls(data=DataLoader(Points(), **order), out=tmp_path)  # type: ignore[arg-type]
    kept = DataLoader(Points(), num_workers=1, persistent_workers=True)
    with pytest.raises(DataError, match="Set persistent_workers=False"):
        _calls(data=kept, out=tmp_path)


DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def _codes(document: Path = DOCUMENT) -> list[str]:
    return re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)


def test_the_document_runs() -> None:
    names: dict[str, Any] = {}
    with torch.random.fork_rng():
        exec(compile(_codes()[1], "docs/python.md", "exec"), names)
    assert len(names["losses"]) == 20 * 4
    tested = [each["epoch"] for each in names["session"].history.epochs if each["split"] == "test"]
    assert tested == [0, 5, 10, 15, 19]
    assert names["accuracy"] > 0.8
    assert names["losses"][-1] < names["losses"][0] / 2
    assert names["loss"] == pytest.approx(names["last"]["loss"], rel=1e-5)
    assert torch.equal(names["rows"].argmax(1), names["classes"])


@pytest.mark.slow
def test_the_document_trains_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its longest numbers made short."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_photos(tmp_path / "photos", each=8)
    Path("contrast.py").write_text(_codes(DOCUMENT.with_name("adding_a_method.md"))[0])
    code = _codes()[0].replace("epochs=100", 'iterations=2, workers=0, device="cpu"')
    exec(compile(code, "docs/python.md", "exec"), names := dict[str, Any]())
    assert names["scores"]["scores"]
    assert (tmp_path / "birds-resnet" / "model.safetensors").is_file()


class Compares(Method):
    def forward(self, output: Any, target: Any) -> Any:
        return square(output, target)


def _method(drop_last: bool) -> str:
    model = net()
    try:
        fit(model, Points(), loss=Compares(), optimizer=sgd(model), epochs=1, batch_size=2, device="cpu",
            drop_last=drop_last)  # fmt: skip
    except DataError as error:
        return str(error)
    return "trained"


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_method_needs_equal_shares(two_ranks: RankPool, drop_last: bool) -> None:
    for text in two_ranks.run(_method, drop_last):
        assert (text == "trained") == drop_last
        assert drop_last or "Compares compares the images of all ranks" in text


@pytest.mark.parametrize("form", ["torch", "dict"])
def test_parameters_that_settings_freeze(form: str) -> None:
    model = net()
    before = model[0].weight.clone()
    lr = {"param_schedulers": {"lr": {"name": "constant", "value": 0.1}}}
    optimizer: Any = sgd(model) if form == "torch" else {"name": "sgd", **lr}
    settings = {"MODEL": {"NON_TRAINABLE_PARAMS": ["0.weight"]}}
    fit(model, Points(), loss=square, optimizer=optimizer, epochs=1, device="cpu", values=settings)
    assert torch.equal(model[0].weight, before)
    assert not torch.equal(model[3].weight, net()[3].weight)
