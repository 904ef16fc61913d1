from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sslengine.errors import ConfigError
from sslengine.hooks.events import Hook
from sslengine.python.fit import fit
from sslengine.python.session import History, KeepHistory, Session
from tests.python.toys import Points, batches, net, sgd, square


def trained(**changes: Any) -> Session:
    model = net()
    return fit(model, batches(Points()), loss=square, optimizer=sgd(model), epochs=1, device="cpu",
               test=Points(6, seed=1), batch_size=4, **changes)  # fmt: skip


def rows(session: Session, points: Points) -> Tensor:
    with torch.no_grad():
        return session.model(points.x)  # type: ignore[no-any-return]


def test_predictions_of_a_set_by_its_name_and_of_another() -> None:
    session, test, other = trained(), Points(6, seed=1), Points(5, seed=3)
    torch.testing.assert_close(session.predict("test"), rows(session, test))
    assert session.predict("test", transform=len) == 6
    assert session.predict("test", collate=len) == 2
    with torch.no_grad():
        next(session.model.parameters()).add_(1.0)
    session.model.train()
    torch.testing.assert_close(session.predict("test"), rows(session, test))
    torch.testing.assert_close(session.predict(other), rows(session, other))
    assert session.model.training


def test_scores_of_outputs_and_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sign of the first input is the class: neighbours tell it."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(80, 3, generator=draw).sign() * 4 + torch.randn(80, 3, generator=draw) / 9
    sets = [TensorDataset(part, (part[:, 0] > 0).long()) for part in x.split(40)]
    model = nn.Linear(3, 3)
    nn.init.eye_(model.weight)
    session = fit(model, sets[0], loss=lambda rows, labels: rows.mean(), optimizer=sgd(model, lr=0.0), epochs=1,
                  validation=sets[1], device="cpu", out=tmp_path, batch_size=7)  # fmt: skip
    (score,) = session.judge()["scores"]
    assert (score["knn"]["1"], score["linear"]) == (100.0, 100.0)
    assert score["about"]["images"] == {"train": 40, "test": 40}
    capsys.readouterr()
    assert session.report().parent == tmp_path
    assert "6 of 6 steps" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="out="):
        trained().report()


def test_the_loss_over_a_set() -> None:
    session = trained(validation=Points(5, seed=2))
    for name, count, seed in (("train", 10, 0), ("validation", 5, 2), ("test", 6, 1)):
        points = Points(count, seed=seed)
        expected = square(rows(session, points), points.y).item()
        assert session.evaluate_loss(name)["loss"] == pytest.approx(expected, rel=1e-6)


def test_a_set_that_was_not_given() -> None:
    session = trained()
    with pytest.raises(ConfigError, match=r"no dataset 'validation'; fit was given train, test"):
        session.predict("validation")
    with pytest.raises(ConfigError, match=r"no dataset 'tset'.* Did you mean 'test'"):
        session.evaluate_loss("tset")


def _parts(output: Tensor, target: Tensor) -> dict[str, Tensor]:
    return {"loss": square(output, target), "size": output.square().mean()}


def test_each_batch_has_its_losses_and_each_update_its_rate() -> None:
    model, points = net(), Points()
    session = fit(
        model, batches(points), loss=_parts, optimizer=sgd(model), epochs=1, accumulate=2, validation=points,
        device="cpu",
    )  # fmt: skip
    known = [set(record) for record in session.history.steps]
    of_all = {"iteration", "epoch", "loss", "loss.size"}
    assert known == [of_all, of_all | {"lr"}, of_all | {"lr"}]  # of three, the last is alone
    assert session.history.steps[1]["lr"] == 0.1
    assert [record["split"] for record in session.history.epochs] == ["train", "test"]


def test_what_was_made_before_an_error() -> None:
    class Fail(Hook):
        def on_step(self, task: Any) -> None:
            if task.iteration == 2:
                raise KeyboardInterrupt

    model, history = net(), History()
    with pytest.raises(KeyboardInterrupt):
        fit(model, batches(Points()), loss=square, optimizer=sgd(model), epochs=1, device="cpu",
            hooks=[KeepHistory(history), Fail()], values={"LOG_FREQUENCY": 1})  # fmt: skip
    assert [record["iteration"] for record in history.steps] == [1]
