from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms import functional as T

from sslengine.command.embed import embed
from sslengine.data.decode.decoding import Decoder, open_image
from sslengine.data.options import SplitOptions
from sslengine.engine.build import build_base_model
from sslengine.engines.train import train
from sslengine.errors import ConfigError, SSLEngineError
from sslengine.evaluate.store import Store
from sslengine.launch.local import launch
from sslengine.models.build import build_trunk
from sslengine.models.options import ModelOptions
from sslengine.predictor import Predictor
from sslengine.predictor.report import as_text, save
from tests.config.recipes import resolved
from tests.data.deep_files import numbers, png, tiff
from tests.engines.runs import make_run
from tests.predictor.runs import BATCH, CLASSES, EACH, changes, make_classifier, pictures


def _by_hand(path: Path) -> torch.Tensor:
    """The margin of 256 to 224 around 8 pixels is 9."""
    image = T.center_crop(T.resize(Image.open(path).convert("RGB"), 9), 8)
    return T.normalize(T.to_tensor(image), [0.5, 0.4, 0.3], [0.2, 0.3, 0.4])


def _model(folder: Path, paths: Path) -> Any:
    model = build_base_model(resolved(**changes(paths)).config, torch.device("cpu"))
    state = torch.load(folder / "checkpoints" / "checkpoint.torch", weights_only=True)
    parts = state["classy_state_dict"]["base_model"]["model"]
    model.trunk.load_state_dict(parts["trunk"])
    model.heads.load_state_dict(parts["heads"])
    return model.eval()


@torch.no_grad()
def test_features_classes_and_neighbours_are_those_computed_by_hand(classifier: Path) -> None:
    paths = sorted((classifier / "images").rglob("*.png"))
    predictor = Predictor(classifier / "run", nearest=5)
    assert "resized to 9, cropped to 8 in the centre, normalised" in predictor.view.description
    found = predictor(paths[5])
    model = _model(classifier / "run", classifier / "images")

    # In the predictor's own batches: one image that is asked about, training images by four.
    def features(batch: torch.Tensor) -> torch.Tensor:
        return model.trunk(batch)[0].flatten(1)

    (alone,) = features(_by_hand(paths[5])[None])
    torch.testing.assert_close(found.features, alone)
    images = torch.stack([_by_hand(path) for path in paths])
    every = torch.cat([features(batch) for batch in images.split(BATCH)])
    assert found.classes is not None
    logits = model(_by_hand(paths[5])[None])[0][0]
    torch.testing.assert_close(found.classes, logits.softmax(0))
    similar = F.cosine_similarity(every, alone[None])
    expected = similar.sort(descending=True).values[:5].tolist()
    assert [each.similarity for each in found.nearest] == pytest.approx(expected, abs=1e-5)
    # Another may be as near, to rounding.
    (itself,) = (each for each in found.nearest if each.index == 5)
    assert itself.similarity == pytest.approx(expected[0], abs=1e-5)
    assert (itself.path, itself.label) == (str(paths[5]), 5 // EACH)
    assert len({each.index for each in found.nearest}) == 5


@pytest.mark.slow
def test_the_index_is_made_once_for_each_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_classifier(tmp_path, OPTIMIZER__num_epochs=1)
    made: list[str] = []
    make = Store.make

    def counted(folder: Path, *given: Any, **more: Any) -> Store:
        made.extend([folder.name] * (not folder.exists()))
        return make(folder, *given, **more)

    monkeypatch.setattr(Store, "make", counted)
    query = tmp_path / "images" / "class1" / "06.png"
    one, two = (Predictor(tmp_path / "run")(query) for _ in range(2))
    assert len(made) == 1
    assert one.nearest == two.nearest
    # Trained further: another checkpoint, and another index.
    train(make_run(tmp_path / "run", **changes(tmp_path / "images"), OPTIMIZER__num_epochs=2))
    three = Predictor(tmp_path / "run")(query)
    assert len(made) == 2
    assert three.nearest[0].path == str(query)
    # Another image among those of training.
    Image.open(query).save(tmp_path / "images" / "class0" / "copy.png")
    four = Predictor(tmp_path / "run")(query)
    assert len(made) == 3
    assert {Path(each.path).name for each in four.nearest[:2]} == {"06.png", "copy.png"}


def test_a_training_image_that_is_another_one_by_now(tmp_path: Path) -> None:
    paths = make_classifier(tmp_path, OPTIMIZER__num_epochs=1)
    query = tmp_path / "query.png"
    shutil.copy(paths[0], query)
    before = Predictor(tmp_path / "run", nearest=1)(query).nearest[0]
    assert (before.path, before.similarity) == (str(paths[0]), pytest.approx(1, abs=1e-5))
    for path, other in ((paths[0], 5), (paths[-1], 0)):  # of the same name
        Image.fromarray(np.full((20, 16, 3), other, np.uint8)).save(path)
    assert Predictor(tmp_path / "run", nearest=1)(query).nearest[0].path != str(paths[0])


def test_other_classes_of_the_training_images(tmp_path: Path) -> None:
    """Their numbers are those of the run, whose classes have names."""
    paths, table = pictures(tmp_path / "images"), tmp_path / "list.csv"

    def label(*names: str) -> None:
        rows = [f"{path},{names[number // EACH]}" for number, path in enumerate(paths)]
        table.write_text("\n".join(["path,label", *rows, ""]))

    def nearest() -> tuple[Any, str]:
        predictor = Predictor(tmp_path / "run", nearest=1)
        found = predictor(paths[0])
        shown = as_text(predictor, {"query": found}).splitlines()[-1]
        return found.nearest[0].label, shown.rpartition("class ")[2]

    label("cat", "dog", "fox")
    listed = {"DATA_SOURCES": ["csv_filelist"], "LABEL_SOURCES": ["csv_filelist"],
              "DATA_PATHS": [str(table)]}  # fmt: skip
    of_table = {f"DATA__TRAIN__{key}": value for key, value in listed.items()}
    train(make_run(tmp_path / "run", **changes(table, **of_table, OPTIMIZER__num_epochs=1)))
    assert nearest() == (0, "cat)")
    label("dog", "cat", "fox")  # as many bytes
    assert nearest() == (1, "dog)")
    label("dog", "ant", "fox")
    assert nearest() == (1, "dog)")
    label("ant", "dog", "fox")
    assert nearest() == ("ant", "ant)")


def test_a_run_that_saw_no_labels_gives_no_classes(tmp_path: Path) -> None:
    train(make_run(tmp_path / "run"))  # contrastive, on noise
    image = Image.new("RGB", (12, 12), "red")
    found = Predictor(tmp_path / "run", nearest=3)(image)
    assert found.classes is None
    assert [each.label for each in found.nearest] == [None] * 3
    assert found.nearest[0].similarity >= found.nearest[-1].similarity


def test_classes_that_a_transform_makes_are_none_of_the_images(tmp_path: Path) -> None:
    transforms = [
        {"name": "RandomResizedCrop", "size": 8},
        {"name": "ImgRotatePil", "num_angles": 4, "num_rotations_per_img": 1},
        {"name": "ToTensor"},
    ]
    make_classifier(
        tmp_path,
        DATA__TRAIN__TRANSFORMS=transforms,
        MODEL__HEAD__PARAMS=[["mlp", {"dims": [32, 4]}]],
    )
    assert Predictor(tmp_path / "run", nearest=0)(Image.new("RGB", (12, 12))).classes is None


def test_code_that_a_runs_config_names_is_not_imported_unasked(tmp_path: Path) -> None:
    """Hooks are no part of a prediction: theirs is not asked for."""
    make_classifier(
        tmp_path, OPTIMIZER__num_epochs=1, HOOKS__EXTRA=["tests.hooks.test_default:Plain"],
        DATA__TEST__TRANSFORMS=[{"name": "torchvision.transforms:ToTensor"}],
    )  # fmt: skip
    (tmp_path / "run" / "signature.json").unlink()  # as that of another user
    with pytest.raises(ConfigError, match=r"TEST.TRANSFORMS.0: 'torchvision.transforms:ToTensor'"):
        Predictor(tmp_path / "run")
    assert len(Predictor(tmp_path / "run", trust_config=True).dataset) == CLASSES * EACH
    typed = ["config.DATA.TEST.TRANSFORMS=[{name: 'torchvision.transforms:ToTensor'}]"]
    assert len(Predictor(tmp_path / "run", overrides=typed).dataset) == CLASSES * EACH


class Own(nn.Module):
    def __init__(self, model: ModelOptions) -> None:
        super().__init__()
        self.trunk = build_trunk(model)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"size": self.trunk(batch["data"])[0].square().mean()}


def test_a_model_of_ones_own_that_has_a_trunk(tmp_path: Path) -> None:
    vit = {"IMAGE_SIZE": 8, "PATCH_SIZE": 2, "NUM_LAYERS": 1, "NUM_HEADS": 1, "HIDDEN_DIM": 8}
    paths = make_classifier(
        tmp_path, LOSS={"name": ""}, TRAINER__TRAIN_STEP_NAME="loss_dict_train_step",
        MODEL__BASE_MODEL_NAME=f"{__name__}:Own", MODEL__HEAD__PARAMS=[],
        MODEL__TRUNK={"NAME": "vision_transformer", "VISION_TRANSFORMERS": vit},
    )  # fmt: skip
    found = Predictor(tmp_path / "run", nearest=1)(paths[3])
    assert found.classes is None
    assert found.features.shape == (8,)
    # The features of a class differ by rounding alone, which decides between its images.
    assert Path(found.nearest[0].path).parent == paths[3].parent
    assert found.nearest[0].similarity == pytest.approx(1.0)


_ELSEWHERE = """
import sys
sys.modules["numba"] = sys.modules["simplejpeg"] = sys.modules["tensorboard"] = None
from sslengine.predictor import Predictor
predictor = Predictor(sys.argv[1], nearest=2, overrides=sys.argv[3:])
print([each.path for each in predictor(sys.argv[2]).nearest][0])
print(predictor.config.DATA.AUGMENT_BACKEND)
"""


def test_a_run_opens_where_it_was_not_trained(tmp_path: Path) -> None:
    """Trained with what cannot be imported here, on images that lie elsewhere here."""
    make_classifier(
        tmp_path, OPTIMIZER__num_epochs=1,
        HOOKS__TENSORBOARD_SETUP__USE_TENSORBOARD=importlib.util.find_spec("tensorboard") is not None,
    )  # fmt: skip
    config = tmp_path / "run" / "config.yaml"
    text = config.read_text()
    assert "AUGMENT_BACKEND: auto" in text
    config.write_text(text.replace("AUGMENT_BACKEND: auto", "AUGMENT_BACKEND: numba"))
    (tmp_path / "images").rename(tmp_path / "moved")
    query = tmp_path / "moved" / "class1" / "06.png"
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, str(tmp_path / "run"), str(query),
         f"config.DATA.TRAIN.DATA_PATHS=['{tmp_path / 'moved'}']"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == f"{query}\nauto\n", done.stderr


def _on(folder: Path, **keys: Any) -> Path:
    """A run on the files in `folder/images`, as the command makes it."""
    views = [{"name": "ImgReplicatePil"}, {"name": "ToTensor"}]
    launch(
        resolved(
            DATA__TRAIN__DATA_SOURCES=["disk_folder"],
            DATA__TRAIN__DATA_PATHS=[str(folder / "images")], DATA__TRAIN__DATA_LIMIT=-1,
            DATA__TRAIN__BATCHSIZE_PER_REPLICA=2, DATA__TRAIN__TRANSFORMS=views,
            OPTIMIZER__num_epochs=1, CHECKPOINT__DIR=str(folder / "run"), **keys,
        ),
    )  # fmt: skip
    return folder / "run"


def _is_its_training_image(predictor: Predictor, paths: list[Path]) -> None:
    for path in paths:
        found = predictor(path)
        number = next(n for n in range(len(paths)) if predictor.training_path(n) == str(path))
        (row,) = (predictor.index.numbers == number).nonzero()[0].tolist()
        unit = F.normalize(found.features.float(), dim=0)
        torch.testing.assert_close(unit, predictor.index.features[row], rtol=1e-4, atol=1e-5)
        itself = next(each for each in found.nearest if each.index == number)
        assert itself.similarity == pytest.approx(1, abs=1e-5)


def test_a_query_of_four_bands_is_decoded_as_the_training_images(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    values = numbers((4, 12, 12, 4), np.uint16)
    paths = [tmp_path / "images" / f"{number}.tif" for number in range(4)]
    for path, image in zip(paths, values, strict=True):
        path.write_bytes(tiff(image, planarconfig="contig"))
    predictor = Predictor(_on(tmp_path, DATA__TRAIN__IMAGE_MODE="stored"), nearest=4)
    _is_its_training_image(predictor, paths)
    assert torch.equal(predictor(values[1]).features, predictor(paths[1]).features)
    save(tmp_path / "sheet.png", predictor, {str(paths[0]): predictor(paths[0])})
    # An image of other bands is the user's mistake.
    Image.new("RGB", (12, 12)).save(tmp_path / "rgb.png")
    with pytest.raises(ConfigError, match=r"rgb.png has 3 bands .* takes 4"):
        predictor(tmp_path / "rgb.png")


def _out_of_memory(images: torch.Tensor, layer: str = "") -> Any:
    raise MemoryError


def test_a_query_of_8_bits_is_not_taken_for_one_of_16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its values would be divided by 255, and all such images have nearly equal features."""
    (tmp_path / "images").mkdir()
    for number, image in enumerate(numbers((4, 12, 12, 4), np.uint16)):
        (tmp_path / "images" / f"{number}.tif").write_bytes(tiff(image, planarconfig="contig"))
    keys = {"DATA__TRAIN__IMAGE_MODE": "stored", "DATA__TRAIN__PIXEL_RANGE": [0, 51049]}
    predictor = Predictor(_on(tmp_path, **keys), nearest=4)
    Image.fromarray(numbers((12, 12, 4), np.uint8), "RGBA").save(tmp_path / "rgba.png")
    why = "its values are of 8 bits.* up to 51049 .*PIXEL_RANGE"
    with pytest.raises(SSLEngineError, match=f"rgba.png.*{why}"):
        predictor(tmp_path / "rgba.png")
    with pytest.raises(ConfigError, match=why):
        predictor(numbers((12, 12, 4), np.uint8))
    (tmp_path / "other").mkdir()
    (tmp_path / "rgba.png").rename(tmp_path / "other" / "rgba.png")
    with pytest.raises(SSLEngineError, match=f"rgba.png.*{why}"):
        embed(tmp_path / "run", tmp_path / "other")
    # Among others it has no row, in any place.
    for name in ("a.tif", "z.tif"):
        shutil.copy(tmp_path / "images" / "0.tif", tmp_path / "other" / name)
    rows = embed(tmp_path / "run", tmp_path / "other")
    assert [Path(path).name for path in rows.paths] == ["a.tif", "z.tif"]
    assert [Path(path).name for path in rows.unreadable] == ["rgba.png"]
    # Nor is it the reason of an error that has another.
    monkeypatch.setattr(Predictor, "trunk_features", property(lambda _: _out_of_memory))
    with pytest.raises(MemoryError):
        embed(tmp_path / "run", tmp_path / "other")


def test_a_query_of_one_channel_and_16_bits_is_decoded_as_the_training_images(
    tmp_path: Path,
) -> None:
    (tmp_path / "images").mkdir()
    values = numbers((4, 12, 12, 1), np.uint16)
    paths = [tmp_path / "images" / f"{number}.png" for number in range(4)]
    for path, image in zip(paths, values, strict=True):
        path.write_bytes(png(image, 0))
    keys = {"DATA__TRAIN__IMAGE_MODE": "L", "DATA__TRAIN__PIXEL_RANGE": [0, 65535]}
    predictor = Predictor(_on(tmp_path, **keys), nearest=4)
    _is_its_training_image(predictor, paths)
    by_path = predictor(paths[2]).features
    with Image.open(paths[2]) as opened:
        assert opened.mode.startswith("I")
        assert torch.equal(predictor(opened).features, by_path)
    # Colours become grey levels, as those of a training image would.
    colours = Image.fromarray(numbers((12, 12, 3), np.uint8))
    grey = colours.convert("L")
    assert torch.equal(predictor(colours).features, predictor(grey).features)


def test_8_bits_of_a_query_are_what_pillow_makes_of_them(tmp_path: Path) -> None:
    decoder = Decoder.build(SplitOptions(), "TRAIN")
    colours = Image.fromarray(numbers((9, 7, 3), np.uint8))
    for mode in ("RGB", "L", "P", "RGBA", "1"):
        image = colours.convert(mode)
        image.save(tmp_path / "a.png")
        expected = image.convert("RGB").tobytes()
        assert open_image(tmp_path / "a.png", decoder).tobytes() == expected
        assert decoder.given(image).tobytes() == expected
