"""Objects with a trunk: methods that own their network, and modules that return their losses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import sslengine as ssl
from sslengine.checkpoint import files
from sslengine.checkpoint.rng import seed_all
from sslengine.errors import ConfigError
from tests import warm
from tests.command.photos import write_photos

COMMON: dict[str, Any] = {
    "recipe": "simclr/cpu", "epochs": 1, "batch_size": 4, "workers": 0, "device": "cpu",
    "precision": "fp32",
}  # fmt: skip
ALL = {"LOG_FREQUENCY": 1}
ME = "tests.python.test_methods"


class SimCLR(ssl.Method):
    def __init__(self, trunk: ssl.ViewTrunk, dim: int = 128, temperature: float = 0.1) -> None:
        super().__init__()
        self.trunk, self.temperature = trunk, temperature
        self.head = ssl.mlp(trunk.width, trunk.width, dim)

    def forward(self, batch: ssl.Batch, step: ssl.Step) -> Tensor:
        z = F.normalize(self.head(self.trunk(batch.views)), dim=-1)
        everyone, start = ssl.gather(z, dim=1)
        return ssl.info_nce(z, everyone, start, self.temperature)


class Pulls(nn.Module):
    """It returns its losses: two views of an image should agree."""

    def __init__(self) -> None:
        super().__init__()
        self.net = ssl.trunk("test_resnet", size=32)

    def forward(self, batch: Any) -> dict[str, Tensor]:
        one, two = self.net(batch["data"][:2])
        return {"pull": F.mse_loss(one, two), "spread": one.var(dim=0).sub(1).square().mean()}


class Own(nn.Module):
    """A model of one's own whose trunk is any network."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 6, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())  # fmt: skip

    def forward(self, batch: Any) -> Any:
        images = batch["data"]
        images = images if isinstance(images, Tensor) else torch.cat(list(images))
        return {"size": self.backbone(images).sub(1).square().mean()}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos") / "photos", each=8)


def make() -> SimCLR:
    seed_all(0)
    return SimCLR(ssl.trunk("test_resnet", size=32), dim=16, temperature=0.2)


def saved(run: Path) -> Any:
    return files.read(run / "checkpoints" / files.POINTER)["classy_state_dict"]


def test_a_method_trains_as_the_yaml_that_names_it(photos: Path, tmp_path: Path) -> None:
    method = make()
    session = ssl.fit(method, photos, out=tmp_path / "objects", values=ALL, **COMMON)
    named = {"LOSS.name": f"{ME}:SimCLR", "LOSS.dim": 16, "LOSS.temperature": 0.2}
    run = ssl.train(photos, None, "test_resnet", size=32, out=tmp_path / "yaml", seed=0,
                    values={**ALL, **named}, **COMMON)  # fmt: skip
    assert session.history.losses() == [step["loss"] for step in run.metrics()]
    ours, theirs = saved(tmp_path / "objects"), saved(tmp_path / "yaml")
    for part in (lambda state: state["base_model"]["model"]["trunk"], lambda state: state["loss"]):
        assert part(ours).keys() == part(theirs).keys()
        assert all(torch.equal(part(ours)[name], part(theirs)[name]) for name in part(ours))
    # The caller's method has its trained trunk again, and the run is one as any other.
    trained = {f"trunk.{name}": each for name, each in method.trunk.trunk.state_dict().items()}
    assert all(torch.equal(trained[f"trunk.{name}"], each)
               for name, each in ours["base_model"]["model"]["trunk"].items())  # fmt: skip
    assert {each.partition(".")[0] for each in method.state_dict()} == {"trunk", "head"}
    assert (tmp_path / "objects" / "weights").is_dir()
    again = ssl.fit(method, photos, out=tmp_path / "objects", values=ALL, **COMMON)
    assert (again.iteration, again.history.steps) == (session.iteration, [])


def test_a_class_that_no_other_process_could_import(photos: Path, tmp_path: Path) -> None:
    class Mine(SimCLR):
        pass

    method = Mine(ssl.trunk("test_resnet", size=32))
    session = ssl.fit(method, photos, out=tmp_path / "run", evaluate_every=1,
                      **{**COMMON, "epochs": 2})  # fmt: skip
    assert "name: __main__:Mine" in (tmp_path / "run" / "config.yaml").read_text()
    assert all("knn_20" in each["online"] or "rankme" in each["online"]
               for each in session.history.epochs)  # fmt: skip
    script = f"import sslengine; print(sslengine.load({str(tmp_path / 'run')!r}).feature_dim)"
    done = warm.run([sys.executable, "-c", script])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(method.trunk.width)


@pytest.mark.parametrize("what", [{"shuffle": False}, {"validation": []}, {"iterations": 3}])
def test_what_images_do_not_take(what: dict[str, Any], photos: Path) -> None:
    with pytest.raises(ConfigError, match="fit: "):
        ssl.fit(make(), photos, **{**COMMON, **what})


# ---- modules that return their losses


@pytest.mark.slow
def test_a_module_that_returns_its_losses_is_judged_and_exported(
    photos: Path, tmp_path: Path
) -> None:
    session = ssl.fit(Pulls(), photos, out=tmp_path / "run", **COMMON)
    (epoch,) = session.history.epochs
    assert {"trunk_rank", "input_std"} <= epoch.keys()
    scores = session.run.judge(photos, photos, device="cpu")["scores"]
    assert {"trained", "untrained"} <= {each["features"] for each in scores}
    assert (session.run.export(tmp_path / "timm") / "model.safetensors").is_file()


def test_of_ones_own_batches_too() -> None:
    method, views = make(), [torch.rand(4, 3, 32, 32) for _ in range(2)]
    session = ssl.fit(method, [(views, None)], optimizer=torch.optim.SGD(method.parameters(), 0.1),
                      epochs=2, device="cpu")  # fmt: skip
    assert session.history.losses()[1] < session.history.losses()[0]
    assert session.evaluate_loss("train")["loss"] > 0
    assert session.predict(TensorDataset(views[0])).shape == (4, method.trunk.width)


@pytest.mark.parametrize("part", ["", "backbone.0"])
def test_features_of_a_model_come_from_its_trunk(part: str) -> None:
    images = torch.rand(12, 3, 8, 8)
    images[::2] *= 0.1
    data, model = TensorDataset(images, torch.arange(12) % 2), Own()
    session = ssl.fit(model, data, optimizer=torch.optim.SGD(model.parameters(), 0.1), epochs=1,
                      validation=data, device="cpu", trunk=part or None)  # fmt: skip
    expected = (model.get_submodule(part) if part else model.backbone)(images).detach()
    torch.testing.assert_close(session.predict("train"), expected)
    assert "trunk_rank" in session.results["train"]
    assert session.judge()["scores"][0]["about"]["images"] == {"train": 12, "test": 12}
    with pytest.raises(ConfigError, match="trunk_part"):
        ssl.fit(model, data, epochs=1, device="cpu", trunk="bacbone")


def test_a_model_that_yaml_names_is_judged_and_exported(photos: Path, tmp_path: Path) -> None:
    named = {"MODEL.BASE_MODEL_NAME": f"{ME}:Own", "LOSS.name": "", "MODEL.HEAD.PARAMS": [],
             "TRAINER.TRAIN_STEP_NAME": "loss_dict_train_step"}  # fmt: skip
    run = ssl.train(photos, None, "test_resnet", size=32, out=tmp_path / "run", values=named,
                    **COMMON)  # fmt: skip
    assert run.load().feature_dim == 6
    scores = run.judge(photos, photos, device="cpu")["scores"]
    assert {"trained", "untrained"} <= {each["features"] for each in scores}
    assert (run.export(tmp_path / "tensors", "state-dict") / "model.safetensors").is_file()


def test_when_it_is_tested() -> None:
    data = TensorDataset(torch.rand(4, 3), torch.rand(4, 1))
    for every, epochs in ((None, [0, 1, 2]), (2, [0, 2]), (0, [])):
        model = nn.Linear(3, 1)
        session = ssl.fit(model, data, loss=F.mse_loss, validation=data, evaluate_every=every,
                          optimizer=torch.optim.SGD(model.parameters(), 0.1), epochs=3,
                          device="cpu")  # fmt: skip
        tested = [each["epoch"] for each in session.history.epochs if each["split"] == "test"]
        assert tested == epochs
