"""timm/NAME and torchvision/NAME in place of a run: their features, view, scores and weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file

import sslengine
from sslengine.command import judge
from sslengine.command.front import main
from sslengine.command.networks import StockNetwork, view_of
from sslengine.config.resolve import resolve_dict
from sslengine.config.sections import read
from sslengine.data.options import DataOptions
from sslengine.errors import CheckpointError, ConfigError, OutputError
from sslengine.trained import View
from tests.command.photos import write_photos

SIGLIP = "vit_base_patch16_siglip_224"  # its pretrained config squashes images


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("here")
    write_photos(folder / "photos", each=4)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for name in ("test_vit", "test_resnet"):
            save_file(timm.create_model(name).state_dict(), folder / f"{name}.safetensors")
    return folder


def test_features_are_those_of_timm(here: Path, tmp_path: Path) -> None:
    for tokens, ending in (("image", "npz"), ("patches", "npz"), ("patches", "parquet")):
        given = ["timm/test_vit", str(here / "photos"), "--workers=0"]
        given.append(f"--weights={here / 'test_vit.safetensors'}")
        out = f"--out={tmp_path / tokens}.{ending}"
        assert main(["embed", *given, f"--tokens={tokens}", out]) == 0
    images, patches = np.load(tmp_path / "image.npz"), np.load(tmp_path / "patches.npz")
    network = timm.create_model("test_vit", checkpoint_path=here / "test_vit.safetensors").eval()
    network.reset_classifier(0)
    how = timm.data.resolve_model_data_config(network)
    transform = timm.data.create_transform(**how, is_training=False)
    with torch.no_grad():
        batch = torch.stack([transform(Image.open(path)) for path in images["paths"]])
        all_tokens = network.forward_features(batch)[:, network.num_prefix_tokens :]
        np.testing.assert_allclose(images["features"], network(batch), atol=1e-5)
    np.testing.assert_allclose(patches["features"], all_tokens, atol=1e-5)
    assert patches["grid"].tolist() == [10, 10]
    table = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "patches.parquet")
    one = table.slice(2 * 100 + 37, 1).to_pylist()[0]  # of the third image
    assert (one["path"], one["row"], one["column"]) == (str(images["paths"][2]), 3, 7)
    assert one["label"] == "dark"
    np.testing.assert_array_equal(one["features"], patches["features"][2, 37])


@pytest.mark.parametrize("library", ["timm, to the centre", "timm, squashed", "torchvision"])
def test_the_view_is_that_of_the_pretrained_config(library: str) -> None:
    library, _, squashed = library.partition(", ")
    network = StockNetwork(library, SIGLIP if squashed == "squashed" else "test_vit")
    if library == "torchvision":
        network = StockNetwork(library, "efficientnet_b0")
        theirs: Any = torchvision.models.get_model_weights(network.name).DEFAULT.transforms()
    else:
        how = timm.data.resolve_data_config(
            pretrained_cfg=timm.get_pretrained_cfg(network.name).to_dict()
        )
        theirs = timm.data.create_transform(**how, is_training=False)
    pixels = np.random.default_rng(0).integers(0, 256, (300, 411, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    tree = {"DATA": {"TEST": {"TRANSFORMS": view_of(network)}}}
    view = View(read(resolve_dict(tree, engine="evaluate").config, DataOptions), seed=0)
    torch.testing.assert_close(view(image), theirs(image))


def test_its_scores_stand_beside_untrained_pixels_and_chance(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    photos = f"--train={here / 'photos'}", f"--val={here / 'photos'}"
    given = ["judge", "timm/test_resnet", *photos, "--workers=0"]
    weights = f"--weights={here / 'test_resnet.safetensors'}"
    assert main([*given, weights]) == 0
    config = Path("runs/test_resnet-judged/config.yaml")  # another machine has more cores
    config.write_text(
        re.sub("NUM_DATALOADER_WORKERS: .*", "NUM_DATALOADER_WORKERS: 9", config.read_text())
    )
    assert main([*given, weights]) == 0
    found = json.loads(Path("runs/test_resnet-judged/evaluation.json").read_text())
    scores = {each["features"]: each for each in found["scores"]}
    assert scores.keys() == {"trained", "untrained", "raw pixels"}
    assert found["chance"] == 50.0
    assert found["weights"] == str(here / "test_resnet.safetensors")
    assert scores["trained"]["about"]["trunk"] == "timm test_resnet"
    with pytest.raises(OutputError, match="--out FOLDER"):  # it has another network
        judge.main(["timm/test_vit", *photos, "--out=runs/test_resnet-judged", weights])
    Path("mine").mkdir()
    Path("mine/letter.txt").touch()
    with pytest.raises(OutputError, match="--out FOLDER"):
        judge.main(["timm/test_resnet", *photos, "--out=mine", weights])


def test_timms_weights_are_downloaded_as_safetensors_alone(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def download(repository: str, file: str, revision: str | None) -> str:
        asked.append((repository, file))
        return str(here / "test_resnet.safetensors")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    rows = sslengine.embed("timm/test_resnet", here / "photos", workers=0)
    assert repr(rows) == "Rows(features 8 x 96, with labels, 0 unreadable)"
    assert asked == [("timm/test_resnet.r160_in1k", "model.safetensors")]
    pickled = timm.get_pretrained_cfg("test_resnet")
    pickled.hf_hub_filename = "model.pt"
    monkeypatch.setattr(timm, "get_pretrained_cfg", lambda name: pickled)
    with pytest.raises(CheckpointError, match=r"expected model.safetensors.\n .*--weights FILE"):
        sslengine.embed("timm/test_resnet", here / "photos", workers=0)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("run", "more", "message"),
    [
        ("timm/test_resnet", {"tokens": "patches"}, "for vision transformers"),
        ("timm/test_resnett", {}, "Did you mean 'test_resnet'"),
        ("runs/none", {}, "--weights: it belongs to timm/NAME"),
    ],
)
def test_what_it_cannot_do_is_refused(
    run: str, more: dict[str, Any], message: str, here: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        sslengine.embed(run, here / "photos", weights=here / "test_resnet.safetensors", **more)
