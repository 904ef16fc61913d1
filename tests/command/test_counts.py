"""No count is less than it can be; none that is given is taken for one that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

import sslengine
from sslengine.command.front import main
from sslengine.errors import ConfigError

TYPED = 2
TRAIN = "train images --method simclr"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        *((f"{TRAIN} --{option}", f"--{option.split('=')[0]}: expected {least} or more")
          for option, least in {
              "size=0": 1, "size=-3": 1, "batch-size=0": 1, "epochs=0": 1, "length=0": 1,
              "gpus=-1": 0, "workers=-1": 0, "freeze-trunk=-1": 0,
          }.items()),
        *((f"{TRAIN} --val={share}", f"--val: expected a share, such as 0.1; got {share}")
          for share in ("0", "1", "1.5", "-0.1", "nan")),
        ("embed run images --out rows.npz --batch-size=0", "--batch-size: expected 1 or more"),
        ("judge run --gpus=-1", "--gpus: expected 0 or more, got -1"),
        ("judge run --workers=-1", "--workers: expected 0 or more"),
        ("rank run --rows=1", "--rows: expected 2 or more, got 1"),
        ("rank run --views=-1", "--views: expected 0 or more"),
        ("predict run image.png --nearest=-1", "--nearest: expected 0 or more"),
        ("explain config=quickstart/simclr --count=0", "--count: expected 1 or more"),
        ("explain config=quickstart/simclr --views=0", "--views: expected 1 or more"),
        ("convert config=quickstart/simclr --from=images --to=vissl --out=x --image-size=0",
         "--image-size: expected 1 or more"),
        ("make permutations drawn.npy --count=0", "--count: expected 1 or more"),
    ],
)  # fmt: skip
def test_of_the_command(
    command: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "images").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == TYPED
    assert told in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["images"]


def test_of_a_call(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--batch-size: expected 1 or more, got 0"):
        sslengine.train(tmp_path, method="simclr", batch_size=0)
    with pytest.raises(ConfigError, match="--size: expected 1 or more, got 0"):
        sslengine.train(tmp_path, "simclr", size=0)
