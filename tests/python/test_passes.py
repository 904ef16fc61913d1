from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sslengine
from sslengine.errors import ConfigError, DataError, LaunchError
from sslengine.hooks.events import Hook
from sslengine.python.fit import fit
from sslengine.python.passes import choose_device, evaluate_loss, predict
from sslengine.python.session import History, KeepHistory, Session
from tests.python.toys import COUNT, Points, batches, net, sgd, square
from tests.ranks import RankPool, free_port

CPU = torch.device("cpu")
SCRIPT = """
import sys
import sslengine, torch
from tests.python.toys import Points, net, sgd, square
model = net()
session = sslengine.fit(model, Points(), loss=square, optimizer=sgd(model), epochs=1, batch_size=2,
                        device="cpu", quiet=True)
rows = sslengine.predict(model, Points(), device="cpu")
told = [len(rows), torch.distributed.get_world_size(), session.history.losses()]
sys.stdout.write(" ".join(map(str, told)) + "\\n")  # at once: two ranks write into one pipe
"""


def expected(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model.eval()(Points().x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", ["set", "list", "loader"])
def test_predictions_in_the_order_of_the_set(form: str) -> None:
    points = Points()
    data = {"set": points, "list": batches(points), "loader": DataLoader(points, batch_size=3)}
    model = net(dropout=0.5).train()
    ours = predict(model, data[form], batch_size=4, device="cpu")
    assert model.training
    torch.testing.assert_close(ours, expected(model), rtol=1e-12, atol=1e-14)


def test_predictions_of_a_loader_that_shuffles_and_drops_the_last() -> None:
    model, points = net(), Points()
    loader = DataLoader(points, batch_size=3, shuffle=True, drop_last=True)
    torch.testing.assert_close(predict(model, loader, device="cpu"), expected(model))
    whole = square(expected(model), points.y).item()
    assert evaluate_loss(model, square, loader, device="cpu") == pytest.approx(whole, rel=1e-12)


def test_collate_and_transform_of_the_users() -> None:
    model = net()
    sizes = predict(model, batches(Points()), collate=lambda parts: [len(p) for p in parts],
                    transform=sorted, device="cpu")  # fmt: skip
    assert sizes == [2, 4, 4]
    signs = predict(model, Points(), transform=lambda rows: rows > 0, device="cpu")
    assert torch.equal(signs, expected(model) > 0)


def test_outputs_in_a_form_of_their_own() -> None:
    class Forms(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"twice": 2 * x, "pair": (x, [x.sum(1)])}

    found = predict(Forms(), Points(), batch_size=3, device="cpu")
    assert torch.equal(found["twice"], 2 * Points().x)
    assert torch.equal(found["pair"][1][0], Points().x.sum(1))


def test_outputs_that_cannot_be_put_together() -> None:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean()

    with pytest.raises(DataError, match="pass collate="):
        predict(Mean(), Points(), device="cpu")


def test_the_mean_loss_counts_samples_not_batches() -> None:
    model, points = net(dropout=0.5), Points()
    whole = square(expected(model), points.y).item()
    for data in (points, batches(points)):
        found = evaluate_loss(model.train(), square, data, batch_size=4, device="cpu")
        assert found == pytest.approx(whole, rel=1e-12)


def test_losses_by_their_names() -> None:
    model = net()

    def losses(output: Tensor, target: Tensor) -> dict[str, Tensor]:
        return {"loss": square(output, target), "size": output.abs().mean()}

    found = sslengine.evaluate_loss(model, losses, Points(), batch_size=3, device="cpu")
    assert found["loss"] == pytest.approx(square(expected(model), Points().y).item(), rel=1e-12)
    assert found["size"] == pytest.approx(expected(model).abs().mean().item(), rel=1e-12)


def _both(batch_size: int) -> tuple[Tensor, Any]:
    model = net()
    ours = predict(model, Points(), batch_size=batch_size, device="cpu")
    return ours, evaluate_loss(model, square, Points(), batch_size=batch_size, device="cpu")


@pytest.mark.parametrize("batch_size", [1, 2, 3, 64])
def test_ranks_see_the_whole_set_once(two_ranks: RankPool, batch_size: int) -> None:
    model = net()
    for ours, loss in two_ranks.run(_both, batch_size):
        assert ours.shape == (COUNT, 1)
        torch.testing.assert_close(ours, expected(model), rtol=1e-12, atol=1e-14)
        assert loss == pytest.approx(square(expected(model), Points().y).item(), rel=1e-12)


def test_devices() -> None:
    assert choose_device("cpu") == CPU
    assert choose_device(CPU) == CPU
    assert choose_device(None).type == ("cuda" if torch.cuda.is_available() else "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(LaunchError, match="no such GPU"):
            choose_device("cuda")


def test_an_unknown_precision() -> None:
    with pytest.raises(ConfigError, match="^precision: .*'half'"):
        predict(net(), Points(), device="cpu", precision="half")


@pytest.mark.slow
def test_below_torchrun_ranks_find_each_other() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2",
               f"--master-port={free_port()}", "--no-python", sys.executable, "-c", SCRIPT]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200)
    one, two = done.stdout.strip().splitlines()
    assert one == two
    assert one.startswith("10 2 [")


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
