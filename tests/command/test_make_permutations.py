from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sslengine.command import make
from sslengine.data.augment.jigsaw import ShuffleImgPatches, distances, distinct_permutations
from sslengine.errors import SSLEngineError


def main(arguments: list[str]) -> int:
    return make.main(["permutations", *arguments])


def test_it_writes_what_the_transform_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "p.npy"
    main(["--count", "10", "--patches", "4", str(file)])
    read = ShuffleImgPatches(str(file)).permutations
    assert read.tolist() == distinct_permutations(10, 4).tolist()
    told = capsys.readouterr().out
    assert f"{file}: 10 permutations of 4 patches. Two differ in" in told


def test_another_seed_other_permutations(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.npy" for number in range(3)]
    for file, seed in zip(files, (0, 0, 1)):
        main(["--count=10", "--patches=4", f"--seed={seed}", str(file)])
    assert files[0].read_bytes() == files[1].read_bytes()
    assert np.load(files[2]).tolist() != np.load(files[0]).tolist()


def test_distances() -> None:
    assert distances(np.array([[0, 1, 2], [1, 2, 0], [0, 2, 1]])) == (pytest.approx(7 / 3), 2)
    assert distances(np.array([[0, 1, 2]])) == (0, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--count=30", "--patches=4", "p.npy"], "4 pieces have 24 permutations; asked for 30"),
        (["--patches=16", "p.npy"], "expected 2 to 9 pieces, got 16"),
    ],
)
def test_what_cannot_be_made_is_told(arguments: list[str], message: str) -> None:
    with pytest.raises(SSLEngineError, match=message):
        main(arguments)


def test_help_and_a_wrong_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--count" in capsys.readouterr().out
    with pytest.raises(SSLEngineError, match="ends in .npy"):
        main(["p.txt"])
