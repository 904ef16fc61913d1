"""The plain file: its parts against formulas and torchvision, and a small run of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet18

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.config.resolve import resolve
from tools import plain_train
from tools.plain_train import main, make_model, simclr_loss, train_steps

TINY = ["--side=24", "--train-images=48", "--test-images=20", "--batch-size=16", "--workers=0"]


def test_the_trunk_is_torchvisions() -> None:
    theirs = resnet18(weights=None).eval()
    theirs.fc = nn.Identity()
    ours = make_model(width=1, blocks=(2, 2, 2, 2)).trunk.eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours(images), theirs(images))


def test_the_loss_is_that_of_the_paper() -> None:
    embeddings = torch.randn(10, 7, dtype=torch.float64)
    cosine = torch.nn.functional.cosine_similarity(embeddings[:, None], embeddings, dim=2)
    terms = []
    for one in range(10):
        other = (one + 5) % 10
        total = sum(math.exp(cosine[one, each] / 0.3) for each in range(10) if each != one)
        terms.append(-math.log(math.exp(cosine[one, other] / 0.3) / total))
    assert simclr_loss(embeddings, 0.3).item() == pytest.approx(sum(terms) / 10, rel=1e-12)


def test_each_batch_is_a_step_of_its_rate() -> None:
    """On one batch again and again, against the gradient steps written out."""
    torch.manual_seed(0)
    model, views = nn.Linear(6, 4, bias=False), torch.randn(8, 6)
    weight = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=99)
    rates = {3: 0.5, 4: 0.25, 5: 0.125}
    losses = train_steps(model, optimizer, [views] * 3, 0.5, rates.__getitem__, first_step=3)
    expected = []
    for rate in rates.values():
        weight.requires_grad_()
        loss = simclr_loss(views @ weight.T, 0.5)
        (gradient,) = torch.autograd.grad(loss, weight)
        weight = (weight - rate * gradient).detach()
        expected.append(loss.item())
    assert [each.item() for each in losses] == pytest.approx(expected)
    torch.testing.assert_close(model.weight.detach(), weight)


def test_a_run_tells_the_losses_and_the_accuracies(capsys: pytest.CaptureFixture[str]) -> None:
    main([*TINY, "--epochs=2"])
    lines = capsys.readouterr().out.splitlines()
    starts = ["kNN on pixels", "kNN before training", "epoch   1", "epoch   2", "kNN after"]
    assert len(lines) == len(starts)
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start)


def test_a_run_that_was_cut_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole.pt", tmp_path / "cut.pt"
    main([*TINY, "--epochs=2", f"--checkpoint={whole}"])

    def stop_in_the_second_epoch(*arguments: Any, first_step: int) -> list[Tensor]:
        if first_step:
            raise KeyboardInterrupt
        return train_steps(*arguments, first_step=first_step)

    with monkeypatch.context() as patch:
        patch.setattr(plain_train, "train_steps", stop_in_the_second_epoch)
        with pytest.raises(KeyboardInterrupt):
            main([*TINY, "--epochs=2", f"--checkpoint={cut}"])
    main([*TINY, "--epochs=2", f"--checkpoint={cut}"])
    expected, found = (torch.load(each, weights_only=True)["model"] for each in (whole, cut))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_it_is_the_run_of_the_quickstart() -> None:
    given = {name: default for name, default, _ in plain_train.OPTIONS}
    config = resolve(["config=quickstart/simclr"]).config
    judged = resolve(["config=quickstart/simclr", "+config/benchmark/frozen=shapes"]).config
    train, optimizer = config.DATA.TRAIN, config.OPTIMIZER
    rise, fall = optimizer.param_schedulers.lr.schedulers
    crop = next(each for each in train.TRANSFORMS if each.name == "RandomResizedCrop")
    colour = next(each for each in train.TRANSFORMS if each.name == "ImgPilColorDistortion")
    assert given == {
        "epochs": optimizer.num_epochs, "batch-size": train.BATCHSIZE_PER_REPLICA,
        "learning-rate": rise.end_value, "warmup": optimizer.param_schedulers.lr.lengths[0],
        "weight-decay": optimizer.weight_decay,
        "temperature": config.LOSS.simclr_info_nce_loss.temperature, "crop": crop.scale[0],
        "strength": colour.strength, "width": config.MODEL.TRUNK.RESNETS.WIDTH_MULTIPLIER,
        "side": crop.size, "train-images": train.DATA_LIMIT,
        "test-images": judged.DATA.TEST.DATA_LIMIT, "seed": config.SEED_VALUE,
        "workers": config.DATA.NUM_DATALOADER_WORKERS, "threads": 1, "checkpoint": "",
    }  # fmt: skip
    assert (rise.start_value, fall.start_value, fall.end_value) == (0, rise.end_value, 0)
    assert crop.size == train.DEFAULT_GRAY_IMG_SIZE
    assert optimizer.name == "adamw"
