"""Copy detection through the engine `evaluate`: timm's own network and DINO's formulas say what is
wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor

from sslengine.contrib.copies import read_copies
from sslengine.errors import DataError
from tests.engines.test_on_images import judged, trained, weights_of
from tests.engines.test_sweep import VIT

assert trained  # a fixture

SIDE = 24
ARGUMENTS = {
    **VIT["MODEL__TRUNK"]["TIMM"]["arguments"], "embed_dim": 32, "dynamic_img_size": True
}  # fmt: skip
TRUNK = {"NAME": "timm", "TIMM": {"model": "vit_tiny_patch16_224", "arguments": ARGUMENTS}}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("trained")
    return weights_of(folder, MODEL__TRUNK=TRUNK, OPTIMIZER__num_epochs=1)


@pytest.fixture(scope="module")
def copydays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """9 originals, of which 3 have two strongly changed copies, and each a darker one."""
    root, draw = tmp_path_factory.mktemp("copydays"), np.random.default_rng(0)

    def save(path: Path, pixels: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)

    for number in range(9):
        pixels = draw.uniform(0, 255, (5, 5, 3)).repeat(8, 0).repeat(8, 1)
        save(root / f"original/{200000 + 100 * number}.png", pixels)
        save(root / f"dark/40/{200000 + 100 * number}.png", 0.4 * pixels)
        for copy in (1, 2) if number < 3 else ():
            changed = 0.7 * pixels[::-1] + draw.normal(40, 40, pixels.shape)
            save(root / f"strong/{200000 + 100 * number + copy}.png", changed)
    for kind, count in (("distractors", 30), ("others", 80)):
        for number in range(count):
            pixels = draw.uniform(0, 255, (5, 5, 3)).repeat(8, 0).repeat(8, 1)
            save(root.with_name(f"{root.name}_{kind}") / f"{number}.png", pixels)
    return root


def _descriptors(weights: str, paths: list[Path]) -> Tensor:
    """Of timm's network: the class token, and (mean of max(x, 1e-6)^4)^(1/4) over the patches."""
    held = torch.load(weights, weights_only=False)["classy_state_dict"]["base_model"]["model"]
    network = timm.create_model("vit_tiny_patch16_224", num_classes=0, **ARGUMENTS)
    own = network.state_dict()
    found = {name: value for key, value in held["trunk"].items() for name in own
             if key == name or key.endswith(f".{name}")}  # fmt: skip
    network.load_state_dict(found)
    images = [np.asarray(Image.open(path).resize((SIDE, SIDE), Image.Resampling.BICUBIC))
              for path in paths]  # fmt: skip
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        tokens = network.eval().forward_features(pixels)
    assert tokens.shape[1] == 1 + (SIDE // 4) ** 2
    patches = tokens[:, 1:].double().clamp(min=1e-6)
    return torch.cat([tokens[:, 0].double(), (patches**4).mean(dim=1) ** 0.25], dim=1)


def _precisions(queries: Tensor, database: Tensor, wanted: list[int]) -> list[float]:
    """DINO's: trapezoids under the curve of the first 20; one image is wanted."""
    unit, others = (torch.nn.functional.normalize(each) for each in (queries, database))
    ranks = [row.tolist().index(own) for row, own
             in zip((unit @ others.T).argsort(dim=1, descending=True), wanted)]  # fmt: skip
    return [(float(rank == 0) + 1 / (rank + 1)) / 2 * (rank < 20) for rank in ranks]


def _asked(root: Path, **more: Any) -> dict[str, Any]:
    distractors = {"DISTRACTORS": f"{root}_distractors"}
    return {"PROTOCOLS": ["copies"],
            "COPIES": {"PATH": str(root), "SIDE": SIDE, **distractors, **more}}  # fmt: skip


@pytest.mark.parametrize("whitened", [pytest.param(False, marks=pytest.mark.slow), True])
def test_copies_find_their_originals_as_by_the_formulas(
    tmp_path: Path, weights: str, copydays: Path, whitened: bool
) -> None:
    others = {"WHITENING": f"{copydays}_others"} if whitened else {}
    found, text = judged(tmp_path, weights, MODEL__TRUNK=TRUNK, EVALUATE=_asked(copydays, **others))
    assert set(found) == {"trained", "untrained", "raw pixels"}
    row = found["trained"]["copies"]

    def rows(folder: Path | str) -> Tensor:
        paths = sorted(Path(folder).glob("*.png"))
        return _descriptors(weights, paths)

    sets = {
        "strong": rows(copydays / "strong"), "dark/40": rows(copydays / "dark/40"),
        "database": torch.cat([rows(copydays / "original"), rows(f"{copydays}_distractors")]),
    }  # fmt: skip
    if whitened:
        others_rows = rows(f"{copydays}_others")
        values, vectors = np.linalg.eigh(np.cov(others_rows.T.numpy(), bias=True))
        kept = values > values.max() * len(values) * np.finfo(float).eps
        moved = torch.from_numpy(vectors[:, kept] / np.sqrt(values[kept]))
        sets = {name: (of - others_rows.mean(dim=0)) @ moved for name, of in sets.items()}
    numbers = {"strong": [0, 0, 1, 1, 2, 2], "dark/40": [*range(9)]}
    precisions = {
        kind: _precisions(sets[kind], sets["database"], of) for kind, of in numbers.items()
    }
    assert len({*precisions["strong"]}) > 1
    for kind, each in precisions.items():
        assert row["metrics"][f"{kind} mAP"] == pytest.approx(100 * np.mean(each), abs=0.01)
    both = [*precisions["strong"], *precisions["dark/40"]]
    assert row["metrics"]["mAP"] == pytest.approx(100 * np.mean(both), abs=0.01)
    details = row["details"]
    assert (details["queries"], details["images"], details["distractors"]) == (15, 39, 30)
    assert details["layer"] == "class token + GeM"
    assert details["view"][0]["size"] == [SIDE, SIDE]
    assert found["raw pixels"]["copies"]["details"]["layer"] == "16x16"
    assert "strong mAP" in text


@pytest.mark.slow
def test_a_convolutional_trunk(tmp_path: Path, trained: str, copydays: Path) -> None:
    """The final feature in place of a class token."""
    found, _ = judged(tmp_path, trained, EVALUATE=_asked(copydays, DISTRACTORS=""))
    assert 0 < found["trained"]["copies"]["metrics"]["mAP"] <= 100


@pytest.mark.slow
def test_an_image_that_cannot_be_read(tmp_path: Path, trained: str, copydays: Path) -> None:
    asked = _asked(copydays)
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "a.png").write_bytes(b"damaged")
    asked["COPIES"]["DISTRACTORS"] = str(tmp_path / "others")
    found, _ = judged(tmp_path / "run", trained, EVALUATE=asked)
    (note,) = found["trained"]["copies"]["notes"]
    assert "1 of 10 images of database cannot be read" in note


def test_folders_of_copies(tmp_path: Path) -> None:
    """By names, or numbers without two digits; other names have no original."""
    for name in ("original/200100", "original/cat", "crops/10/200133", "crops/10/dog", "blur/cat"):
        path = tmp_path / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (tmp_path / "notes").mkdir()
    found = read_copies(tmp_path)
    assert [path.stem for path in found.originals] == ["200100", "cat"]
    named = {kind: ([path.stem for path in paths], numbers)
             for kind, (paths, numbers) in found.kinds.items()}  # fmt: skip
    assert named == {"blur": (["cat"], [1]), "crops/10": (["200133", "dog"], [0, -1])}
    with pytest.raises(DataError, match="there is no folder"):
        read_copies(tmp_path / "blur")
    (tmp_path / "blur/cat.jpg").rename(tmp_path / "blur/cow.jpg")
    (tmp_path / "crops/10/200133.jpg").unlink()
    with pytest.raises(DataError, match="no folder has copies of images in original/"):
        read_copies(tmp_path)
