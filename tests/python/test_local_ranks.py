"""`sslengine.fit(..., ranks=2)`, from scripts whose classes are in `__main__`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import sslengine
from sslengine.errors import ConfigError
from sslengine.python.fit import fit
from tests import warm
from tests.command.photos import write_photos
from tests.integration.command import ROOT
from tests.python.test_methods import ALL, COMMON
from tests.python.toys import Points, net, sgd, square

POINTS = """
import json, sys
import sslengine, torch
from tests.python.toys import Points, net, sgd, square

class Mine(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()
    def forward(self, x):
        return self.net(x)

class Fails(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        raise ZeroDivisionError(f"sample {index}")

if __name__ == "__main__":
    model = Mine()
    optimizer = sgd(model)
    loss = lambda output, target: square(output, target)  # which no pickle takes
    session = sslengine.fit(model, Points(11), loss=loss, optimizer=optimizer, epochs=2,
                            batch_size=2, ranks=2, device="cpu", test=Points(6), quiet=True)
    told = [session.history.losses(), session.iteration, session.complete,
            [each.tolist() for each in model.parameters()], len(session.predict("test")),
            len(optimizer.state)]
    assert sslengine.predict(model, Points(3), device="cpu").shape == (3, 1)
    try:
        sslengine.fit(model, Fails(), loss=loss, optimizer=optimizer, epochs=1, ranks=2,
                      device="cpu")
    except ZeroDivisionError as error:
        told.append(str(error.__cause__))
    print(json.dumps(told))
"""
PHOTOS = """
import json, os, sys
import sslengine as ssl
from torch.nn import functional as F
from sslengine.checkpoint.rng import seed_all
from sslengine.hooks.events import Hook

class SimCLR(ssl.Method):
    def __init__(self, trunk, dim: int = 128, temperature: float = 0.1):
        super().__init__()
        self.trunk, self.temperature = trunk, temperature
        self.head = ssl.mlp(trunk.width, trunk.width, dim)

    def forward(self, batch, step):
        z = F.normalize(self.head(self.trunk(batch.views)), dim=-1)
        everyone, start = ssl.gather(z, dim=1)
        return ssl.info_nce(z, everyone, start, self.temperature)

class Dies(Hook):
    def on_step(self, task):
        if task.iteration == 6 and sys.argv[3] == "dies":
            os.kill(os.getpid(), 9)

photos, out = sys.argv[1:3]
seed_all(0)
method = SimCLR(ssl.trunk("test_resnet", size=32), dim=16)
session = ssl.fit(method, photos, ranks=2, out=out, recipe="simclr/cpu", epochs=2, batch_size=2,
                  workers=0, device="cpu", precision="fp32", hooks=[Dies()],
                  values={"LOG_FREQUENCY": 1, "CHECKPOINT.CHECKPOINT_ITER_FREQUENCY": 2})
print(json.dumps([session.history.losses(), float(sum(each.double().sum() for each in method.state_dict().values()))]))
"""


def _script(code: str, *words: str) -> Any:
    return warm.run([sys.executable, "-c", code, *words], cwd=ROOT)


def test_two_ranks_of_a_script_are_one_process() -> None:
    model = net()
    alone = fit(model, Points(11), loss=square, optimizer=sgd(model), epochs=2, batch_size=4,
                device="cpu", quiet=True)  # fmt: skip
    done = _script(POINTS)
    assert done.returncode == 0, done.stderr
    losses, steps, complete, weights, predicted, optimized, cause = json.loads(
        done.stdout.splitlines()[-1]
    )
    assert losses == pytest.approx(alone.history.losses(), rel=1e-6)
    assert (steps, complete, predicted, optimized) == (alone.iteration, True, 6, 4)
    for ours, theirs in zip(weights, model.parameters(), strict=True):
        torch.testing.assert_close(torch.tensor(ours, dtype=torch.float64), theirs.detach())
    assert "ZeroDivisionError" in cause
    assert "in __getitem__" in cause


@pytest.mark.parametrize("ranks", [0, "two", 1.5])
def test_a_number_of_ranks(ranks: Any) -> None:
    with pytest.raises(ConfigError, match="ranks="):
        fit(net(), Points(), loss=square, epochs=1, ranks=ranks)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_method_at_two_ranks_is_its_yaml_also_when_killed(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", each=8)
    named = {"LOSS.name": "tests.python.test_methods:SimCLR", "LOSS.dim": 16,
             "DISTRIBUTED.NUM_PROC_PER_NODE": 2}  # fmt: skip
    run = sslengine.train(photos, None, "test_resnet", size=32, out=tmp_path / "yaml", seed=0,
                          values={**ALL, **named}, **{**COMMON, "epochs": 2, "batch_size": 2})  # fmt: skip
    expected = [step["loss"] for step in run.metrics()]
    whole = _script(PHOTOS, str(photos), str(tmp_path / "whole"), "")
    losses, weights = json.loads(whole.stdout.splitlines()[-1])
    assert losses == expected
    killed = tmp_path / "killed"
    assert "LaunchError" in _script(PHOTOS, str(photos), str(killed), "dies").stderr
    assert os.listdir(killed / "checkpoints")
    rest, same = json.loads(_script(PHOTOS, str(photos), str(killed), "").stdout.splitlines()[-1])
    assert 0 < len(rest) < len(expected)
    assert rest == expected[-len(rest) :]
    assert same == weights
