from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from PIL import Image

from tests import warm
from tests.predictor.runs import make_classifier

TOOL = Path(__file__).resolve().parents[2] / "tools" / "predict.py"


def _predict(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return warm.run([sys.executable, str(TOOL), *arguments], cwd=cwd)


def test_text_json_and_a_picture(tmp_path: Path) -> None:
    paths = make_classifier(tmp_path, OPTIMIZER__num_epochs=1)
    image = str(paths[2])
    done = _predict("run", image, "--picture", "out.png", "--nearest", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "  classes   " in done.stdout
    assert f"{image} (number 2, class class0)" in done.stdout
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.width > 500
    done = _predict("run", image, str(paths[9]), "--json", "--nearest", "2", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert [each["nearest"][0]["index"] for each in told["images"]] == [2, 9]


def test_an_error_is_one_line(tmp_path: Path) -> None:
    done = _predict("nothing", "a.png", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == ("error: nothing: there is no such folder of a run.\n")
