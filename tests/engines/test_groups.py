"""Groups and domains of images: columns of tables that split what is judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sslengine.config.sections import read
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions
from sslengine.distributed.ranks import is_primary
from sslengine.engines.evaluate import evaluate
from sslengine.engines.finetune import sub_run
from sslengine.engines.options import SweepOptions
from sslengine.engines.sweep import _held_out
from sslengine.errors import DataError
from tests.engines.runs import make_run
from tests.engines.test_evaluate import FROZEN
from tests.engines.test_on_images import judged, trained
from tests.engines.test_sweep import HEAD_SWEEP
from tests.ranks import RankPool

assert trained  # a fixture

GROUPS, OF_EACH = 240, 3


def _table(root: Path, seed: int) -> dict[str, Any]:
    root.mkdir()
    draw, lines = np.random.default_rng(seed), ["path,label,thing"]
    for thing in range(GROUPS):
        label = thing % 2
        colours = draw.normal(128, 40, (8, 8, 3))
        colours[:4] += 20 * (label if draw.random() > 0.5 else draw.integers(2))
        for number in range(OF_EACH):
            pixels = np.kron(colours, np.ones((2, 2, 1))) + draw.normal(0, 4, (16, 16, 3))
            path = root / f"{thing}_{number}.png"
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
            lines.append(f"{path},{'ab'[label]},thing {thing}")
    (root / "table.csv").write_text("\n".join(lines) + "\n")
    return {"DATA_SOURCES": ["csv_filelist"], "LABEL_SOURCES": ["csv_filelist"], "DATA_LIMIT": -1,
            "DATA_PATHS": [str(root / "table.csv")], "TRANSFORMS": [{"name": "ToTensor"}]}  # fmt: skip


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("things")
    train, test = _table(root / "train", 0), _table(root / "test", 1)
    return {**{f"DATA__TRAIN__{key}": value for key, value in train.items()}, "DATA__TEST": test}


def _pixels(folder: Path, *given: Any, **changes: Any) -> dict[str, Any]:
    """The row of raw pixels in the report."""
    judged(folder, *given, **changes, EVALUATE={"PROTOCOLS": ["per_class"]})
    scores = json.loads((folder / "evaluation.json").read_text())["scores"]
    return next(each for each in scores if each["features"] == "raw pixels")


@pytest.mark.slow
def test_a_column_of_the_table(tmp_path: Path, trained: str, tables: dict[str, Any]) -> None:
    alone = _pixels(tmp_path, trained, **tables, LINEAR_PROBE={})
    whole = _pixels(tmp_path, trained, **tables, LINEAR_PROBE={"GROUP_COLUMN": "thing"})
    assert alone["about"]["chosen_on"]["linear"] == "144 of 720 training images"
    assert whole["about"]["chosen_on"]["linear"] == "144 of 720 training images in whole groups"
    assert whole["about"]["penalty"] > alone["about"]["penalty"]
    assert whole["linear"] > alone["linear"] + 5
    details = whole["protocols"]["per_class"]["details"]
    assert details["penalty"] == whole["about"]["penalty"]


def _on_ranks(folder: Path, trained: str, ranks: int, tables: dict[str, Any]) -> dict[str, Any]:
    asked = {"LINEAR_PROBE": {"GROUP_COLUMN": "thing"}, "DISTRIBUTED__NUM_PROC_PER_NODE": ranks}
    run = {**FROZEN, **tables, **asked, "MODEL__WEIGHTS_INIT__PARAMS_FILE": trained}
    evaluate(make_run(folder, "evaluate", **run))
    if not is_primary():
        return {}
    scores = json.loads((folder / "evaluation.json").read_text())["scores"]
    return {each["features"]: (each["linear"], each["about"]["penalty"]) for each in scores}


@pytest.mark.slow
def test_two_ranks_choose_alike(
    tmp_path: Path, trained: str, tables: dict[str, Any], two_ranks: RankPool
) -> None:
    alone = _on_ranks(tmp_path / "alone", trained, 1, tables)
    shared, _ = two_ranks.run(_on_ranks, tmp_path / "shared", trained, 2, tables)
    assert set(alone) == {"trained", "untrained", "raw pixels"}
    assert shared == {name: pytest.approx(each) for name, each in alone.items()}


@pytest.mark.slow
def test_the_groups_of_held_out_test_images(
    tmp_path: Path, trained: str, tables: dict[str, Any]
) -> None:
    held = {"DATA__HOLD_OUT": {"SHARE": 0.5, "GROUP_COLUMN": "thing"},
            "DATA__TEST": {"TRANSFORMS": [{"name": "ToTensor"}]}}  # fmt: skip
    found = _pixels(tmp_path, trained, **{**tables, **held}, LINEAR_PROBE={})
    assert found["about"]["images"] == {"train": 360, "test": 360}
    assert found["about"]["chosen_on"]["linear"].endswith("in whole groups")


def test_an_unknown_column(tmp_path: Path, trained: str, tables: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"LINEAR_PROBE.GROUP_COLUMN.*Did you mean 'thing'\?"):
        _pixels(tmp_path, trained, **tables, LINEAR_PROBE={"GROUP_COLUMN": "things"})
    with pytest.raises(DataError, match=r"LINEAR_PROBE.GROUP_COLUMN: shapes have"):
        _pixels(tmp_path, trained, LINEAR_PROBE={"GROUP_COLUMN": "things"})
    assert not (tmp_path / "features").exists()


def test_a_sweep_chooses_its_head_on_whole_groups(tmp_path: Path, tables: dict[str, Any]) -> None:
    given = {**HEAD_SWEEP, **tables, "DATA__TRAIN__DATA_LIMIT": 300}
    given["DATA__TEST"] = {**tables["DATA__TEST"], "DATA_LIMIT": 30}
    run = make_run(tmp_path, "sweep", **given, LINEAR_PROBE={"GROUP_COLUMN": "thing"})
    held_out = _held_out(run, read(run.config, SweepOptions))
    data = read(sub_run(run, tmp_path / "heads", held_out).config, DataOptions)
    train, held = (
        SSLDataset(getattr(data, split), split, 0, hold_out=data.HOLD_OUT)
        for split in ("TRAIN", "TEST")
    )
    things = [{Path(each.name(n)).stem.split("_")[0] for n in range(len(each))}
              for each in (train, held)]  # fmt: skip
    assert not things[0] & things[1]
    assert len(held) == 72


# ---- Domains that are a column of the images' table, through the engine `evaluate`.


assert trained  # a fixture


def _split(root: Path, count: int, domains: int) -> dict[str, Any]:
    """Colours by class, each domain darker than the last."""
    root.mkdir()
    draw, lines = np.random.default_rng(count), ["path,label,camera"]
    for number in range(count):
        label, camera = number % 2, number // 2 % domains
        pixels = draw.normal(150 - 30 * camera, 10, (16, 16, 3)) + 30 * np.eye(3)[label]
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"{number}.png")
        lines.append(f"{root / f'{number}.png'},{'ab'[label]},camera {camera}")
    (root / "table.csv").write_text("\n".join(lines) + "\n")
    return {"DATA_SOURCES": ["csv_filelist"], "LABEL_SOURCES": ["csv_filelist"], "DATA_LIMIT": -1,
            "DATA_PATHS": [str(root / "table.csv")], "TRANSFORMS": [{"name": "ToTensor"}]}  # fmt: skip


@pytest.mark.slow
def test_a_column_of_the_table_domains(tmp_path: Path, trained: str) -> None:
    train = _split(tmp_path / "train", 36, 3)
    changes = {f"DATA__TRAIN__{key}": value for key, value in train.items()}
    tested = {"DATA__TEST": _split(tmp_path / "test", 24, 3)}
    given = {"PROTOCOLS": ["domains"], "DOMAIN_COLUMN": "camera"}
    found, text = judged(tmp_path / "run", trained, **changes, **tested, EVALUATE=given)
    assert set(found) == {"trained", "untrained", "raw pixels"}
    of = found["raw pixels"]["domains"]["details"]["domains"]
    assert {name: each["images"] for name, each in of.items()} == {
        "camera 0": 8, "camera 1": 8, "camera 2": 8,
    }  # fmt: skip
    assert 0 <= found["trained"]["domains"]["metrics"]["worst domain"] <= 100
    assert "mean of domains" in text
    given["DOMAIN_COLUMN"] = "cameras"
    found, _ = judged(tmp_path / "run", trained, **changes, **tested, EVALUATE=given)
    (note,) = found["trained"]["domains"]["notes"]
    assert "config.EVALUATE.DOMAIN_COLUMN" in note
    assert "has no column 'cameras'. Did you mean 'camera'?" in note
