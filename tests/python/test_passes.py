from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import sslengine
from sslengine.errors import ConfigError, DataError, LaunchError
from sslengine.python.passes import choose_device, evaluate_loss, predict
from tests.python.toys import COUNT, Points, batches, net, square
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
