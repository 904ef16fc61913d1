"""The same toy, data and seed in other engines' own loops: the same losses, for 20 steps.

Run by `make bench`, which installs the peers; each is skipped where it is not there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from sslengine.python.fit import fit
from tests.python.toys import Points, net, plain_loop

pytestmark = pytest.mark.filterwarnings("default")  # theirs are theirs

EPOCHS, SAMPLES, BATCH = 2, 40, 4

Make = Callable[[nn.Module], torch.optim.Optimizer]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@pytest.fixture(params=[sgd, adamw], ids=["sgd", "adamw"])
def make(request: pytest.FixtureRequest) -> Make:
    chosen: Make = request.param
    return chosen


def loader() -> DataLoader[Any]:
    return DataLoader(Points(SAMPLES), batch_size=BATCH)


def ours(make: Make) -> tuple[list[float], nn.Module]:
    model = net()
    session = fit(
        model, loader(), loss=F.mse_loss, optimizer=make(model), epochs=EPOCHS, device="cpu"
    )
    return session.history.losses(), model


def agree(make: Make, losses: list[float], model: nn.Module) -> None:
    mine, mine_model = ours(make)
    assert len(losses) == len(mine) == 20
    assert mine == pytest.approx(losses, rel=1e-12)
    assert sum(mine[10:]) < sum(mine[:10])  # it learns
    for one, other in zip(mine_model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_a_bare_loop(make: Make) -> None:
    model = net()
    agree(make, plain_loop(model, loader(), make(model), EPOCHS), model)


def test_lightning(make: Make, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            self.losses: list[float] = []

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss = F.mse_loss(self.net(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make(self.net)

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=1, logger=False, default_root_dir=tmp_path,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader())
    agree(make, module.losses, module.net)


def test_aitoolbox(make: Make) -> None:
    train_loop = pytest.importorskip("aitoolbox.torchtrain.train_loop", exc_type=ImportError)
    models = pytest.importorskip("aitoolbox.torchtrain.model", exc_type=ImportError)

    class Wrapped(models.TTModel):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            self.losses: list[float] = []

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)  # type: ignore[no-any-return]

        def get_loss(self, batch: Any, criterion: Any, device: Any) -> Tensor:
            loss: Tensor = criterion(self(batch[0].to(device)), batch[1].to(device))
            if self.training:
                self.losses.append(loss.item())
            return loss

        def get_predictions(self, batch: Any, device: Any) -> Any:
            return self(batch[0]), batch[1], {}

    model = Wrapped()
    engine = train_loop.TrainLoop(model, loader(), None, None, make(model.net), nn.MSELoss())
    engine.fit(num_epochs=EPOCHS)
    agree(make, model.losses, model.net)
