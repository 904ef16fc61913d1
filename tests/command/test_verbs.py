"""One run, and what the other verbs and the functions of Python make of it."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
import yaml
from PIL import Image
from safetensors.torch import load_file
from sklearn.metrics import average_precision_score

import sslengine
from sslengine.command import embed
from sslengine.command.front import main
from sslengine.data.manifest.tables import open_table
from sslengine.errors import ConfigError
from sslengine.evaluate.given import read_labels
from tests.command.photos import SMALL, write_photos
from tests.tail import slow_but


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = sslengine.train(
        photos, "simclr", model="resnet10t", epochs=1, size=32, workers=0, device="cpu", val=0.25,
        out=tmp_path_factory.mktemp("runs") / "mine",
    )  # fmt: skip
    assert len(made.metrics("phase")) == 1
    return made.folder


def test_a_run_is_judged_reported_and_applied_from_python(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = sslengine.load(run).run
    assert repr(made) == f"TrainedRun({run})"
    found = made.judge(overrides=["EVALUATE.LABEL_FREE=[]"])
    assert found == json.loads((run / "evaluation.json").read_text())
    assert [each["features"] for each in found["scores"]] == ["trained", "untrained", "raw pixels"]
    capsys.readouterr()
    assert made.report() == run / "report.html"
    assert str(run) in capsys.readouterr().out
    image = photos / "dark" / "0.png"
    (one,) = made.predict(image, nearest=1)
    two = made.predict([Image.open(image), image], nearest=0)
    assert one.nearest[0].path == str(image)
    assert all(torch.equal(each.features, one.features) for each in two)


def test_rows_of_embed_in_every_format(run: Path, photos: Path, tmp_path: Path) -> None:
    for ending in ("npy", "npz", "csv", "parquet"):
        if ending == "parquet":
            pytest.importorskip("pyarrow")
        out = tmp_path / f"rows.{ending}"
        assert main(["embed", str(run), str(photos), "--out", str(out), "--workers=0"]) == 0
    features = np.load(tmp_path / "rows.npy")
    assert features.shape == (16, 512)
    packed = np.load(tmp_path / "rows.npz")
    assert (packed["features"] == features).all()
    assert packed["labels"].tolist() == ["dark"] * 8 + ["light"] * 8
    with (tmp_path / "rows.csv").open(newline="") as file:
        first, *rows = csv.reader(file)
    assert first[:3] == ["path", "label", "feature_0"]
    assert [row[0] for row in rows] == packed["paths"].tolist()
    assert np.array([row[2:] for row in rows], np.float32).tolist() == features.tolist()
    table = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "rows.parquet")
    assert np.array(table["features"].to_pylist(), np.float32).tolist() == features.tolist()
    assert table["path"].to_pylist() == packed["paths"].tolist()


def test_names_that_are_not_utf8(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of images and of classes: any bytes, which parquet's texts cannot hold."""
    images = write_photos(tmp_path / "mine", each=2)
    os.rename(images / "dark", os.fsencode(images) + b"/caf\xe9")
    for ending in ("npz", "csv", "parquet"):
        pytest.importorskip("pyarrow")
        out = tmp_path / f"rows.{ending}"
        assert main(["embed", str(run), str(images), "--out", str(out), "--workers=0"]) == 0
    packed = np.load(tmp_path / "rows.npz")
    paths, labels = packed["paths"].tolist(), packed["labels"].tolist()
    assert all(map(os.path.isfile, paths))
    assert sorted(set(labels)) == ["caf\udce9", "light"]
    form = {"newline": "", "encoding": "utf-8", "errors": "surrogateescape"}
    with (tmp_path / "rows.csv").open(**form) as file:  # type: ignore[call-overload]
        _, *rows = csv.reader(file)
    assert [row[:2] for row in rows] == [list(each) for each in zip(paths, labels)]
    assert main(["judge", "--features", str(tmp_path / "rows.csv")]) == 0
    table = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "rows.parquet")
    escaped = [each.replace("\udce9", "\\udce9") for each in (*paths, *labels)]
    assert table["path"].to_pylist() + table["label"].to_pylist() == escaped
    assert "2 names are not UTF-8, such as " in caplog.text


def test_names_that_a_spreadsheet_or_a_terminal_would_run(run: Path, tmp_path: Path) -> None:
    """Of classes: embed's .csv holds text, which judge --features and csv_filelist read as names."""
    images = write_photos(tmp_path / "mine", each=2)
    formula = "=1+cmd|' calc'!A0"
    os.rename(images / "dark", images / formula)
    os.rename(images / "light", images / "\x1b[2J")
    for ending in ("npz", "csv"):
        out = tmp_path / f"rows.{ending}"
        assert main(["embed", str(run), str(images), "--out", str(out), "--workers=0"]) == 0
    with (tmp_path / "rows.csv").open(newline="") as file:
        _, *rows = csv.reader(file)
    assert sorted({row[1] for row in rows}) == [f"'{formula}", "\\x1b[2J"]
    packed = np.load(tmp_path / "rows.npz")
    assert sorted(set(packed["labels"].tolist())) == ["\x1b[2J", formula]
    (tmp_path / "labels.csv").write_text(f'label\n"{formula}"\n')
    own, plain = (read_labels(tmp_path / name) for name in ("rows.csv", "labels.csv"))
    assert set(plain.values.tolist()) < set(own.values.tolist())
    names, read = open_table(tmp_path / "rows.csv")
    assert [formula] in [*read([list(names).index("label")])]


def test_a_folder_whose_name_is_not_utf8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """config.yaml cannot name it."""
    images = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    os.rename(write_photos(tmp_path / "mine", each=2), images)
    arguments = ["--method=simclr", "--model=resnet10t", "--epochs=1", "--size=32", "--workers=0"]
    assert main(["train", images, *arguments, f"--out={tmp_path / 'run'}"]) == 2
    told = capsys.readouterr().err
    assert "config.DATA.TRAIN.DATA_PATHS.0: " in told
    assert "caf\\udce9 is not UTF-8, and config.yaml is." in told
    assert not (tmp_path / "run").exists()
    os.symlink(images, tmp_path / "link")
    assert main(["train", str(tmp_path / "link"), *arguments, f"--out={tmp_path / 'run'}"]) == 0


@pytest.mark.slow
def test_a_pickled_network_of_ones_own(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = timm.create_model("resnet10t", num_classes=0)
    torch.save(network, tmp_path / "module.pth")
    given = ["train", str(photos), "--method=simclr", "--model=resnet10t", "--epochs=1", "--size=32",
             "--workers=0", f"--weights={tmp_path / 'module.pth'}", f"--out={tmp_path / 'run'}"]  # fmt: skip
    assert main(given) != 0
    assert "Only if it is your own: --trust-pickle" in capsys.readouterr().err
    assert main([*given, "--trust-pickle"]) == 0
    keys = ["--set=MODEL.TRUNK.NAME=timm", "--set=MODEL.TRUNK.TIMM.model=resnet10t"]
    given = ["export", str(tmp_path / "module.pth"), str(tmp_path / "out"), "--to=state-dict"]
    assert main([*given, "--trust-pickle"]) == 2
    assert "--trust-pickle: it is for a file of weights" in capsys.readouterr().err
    assert main([*given, "--config=photos/simclr", *keys, "--trust-pickle"]) == 0
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(found["conv1.0.weight"], network.state_dict()["conv1.0.weight"])


def test_features_of_a_run_in_bf16_are_computed_so_and_those_of_an_export_are_not(
    photos: Path, tmp_path: Path
) -> None:
    made = sslengine.train(
        photos, "simclr", model="resnet10t", epochs=1, size=32, workers=0, device="cpu",
        precision="bf16", out=tmp_path / "run",
    )  # fmt: skip
    half = sslengine.embed(made.folder, photos, workers=0)
    full = sslengine.embed(made.folder, photos, workers=0, overrides=["MACHINE.PRECISION=fp32"])
    network = sslengine.load(made.folder).eval()
    images = torch.stack([network.transform(Image.open(each)) for each in half.paths])
    exported = timm.create_model(f"local-dir:{made.folder}/weights", pretrained=True).eval()
    with torch.no_grad():
        for each in (network(images), exported(images)):
            np.testing.assert_allclose(each.numpy(), full.features, rtol=1e-4, atol=1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = network(images).float().numpy()
    assert abs(half.features - full.features).max() > 1e-4
    assert abs(half.features - rounded).mean() < abs(half.features - full.features).mean() / 2


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["npz", "csv", "parquet"])
def test_rows_of_several_classes_are_judged(
    ending: str, run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From columns of a table to files of rows, and from these to the mAP of scikit-learn."""
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    names, files = ["dark", "no. 1", "third"], sorted(photos.rglob("*.png"))
    known = np.array(
        [[each.parent.name == "dark", n % 3 == 0, n % 2] for n, each in enumerate(files)], int
    )
    known[1, 2] = -1
    tables = {"train": range(0, 16, 2), "val": range(1, 16, 2)}
    rows, outs = {}, []
    for split, some in tables.items():
        table = tmp_path / f"{split}.csv"
        with table.open("w", newline="") as file:
            cells = [[files[n], *("" if each < 0 else each for each in known[n])] for n in some]
            csv.writer(file).writerows([["path", *names], *cells])
        # The columns of the test table in another order.
        order = names if split == "train" else names[::-1]
        columns = [f"--label-column={name}" for name in order]
        outs.append(str(tmp_path / f"rows_{split}.{ending}"))
        arguments = [str(run), str(table), *columns, "--workers=0", "--out", outs[-1]]
        assert main(["embed", *arguments]) == 0
        rows[split] = sslengine.embed(run, table, label_column=order, workers=0)
        assert rows[split].classes == order
        assert np.array_equal(
            rows[split].labels, known[some][:, [names.index(each) for each in order]]
        )
    if ending == "csv":
        with open(outs[1], newline="") as file:
            head, first, *_ = csv.reader(file)
        assert head[:5] == ["path", "label_third", "label_no. 1", "label_dark", "feature_0"]
        assert first[:4] == [str(files[1]), "", "0", "1"]
    elif ending == "parquet":
        read = pytest.importorskip("pyarrow.parquet").read_table(outs[1])
        assert read["label_third"].to_pylist() == [None, *known[3::2, 2]]
    else:
        packed = np.load(outs[1])
        assert packed["labels"].tolist() == known[1::2, ::-1].tolist()
        assert packed["classes"].tolist() == names[::-1]
    capsys.readouterr()
    few = ["--set=EVALUATE.LABEL_FREE=[rankme]", "--set=NEAREST_NEIGHBOR.TOPK=[1]", "--json"]
    assert main(["judge", "--features", *outs, *few]) == 0
    report = json.loads(capsys.readouterr().out)
    unit = {split: each.features / np.linalg.norm(each.features, axis=1, keepdims=True)
            for split, each in rows.items()}  # fmt: skip
    near = (unit["val"] @ unit["train"].T).argmax(1)
    shown, wanted = known[::2][near], known[1::2]
    precisions = [average_precision_score(wanted[at, n], shown[at, n])
                  for n, at in enumerate((wanted >= 0).T)]  # fmt: skip
    assert report["metric"] == "mAP"
    assert report["scores"][0]["knn"]["1"] == pytest.approx(100 * np.mean(precisions))
    assert report["scores"][0]["linear"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("bands", [1, 4])
def test_images_of_other_bands_than_the_run_takes(
    bands: int, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name and with one status, also behind images that fit."""
    tifffile = pytest.importorskip("tifffile")
    images, run = tmp_path / "images", tmp_path / "run"
    images.mkdir()
    values = np.random.default_rng(0).integers(0, 4000, (9, 40, 40, bands), dtype=np.uint16)
    for number, each in enumerate(values):
        how = {"planarconfig": "contig"} if bands > 1 else {}
        tifffile.imwrite(images / f"{number}.tif", each.squeeze(), photometric="minisblack", **how)
    trained = ["--method=simclr", "--model=resnet10t", "--batch-size=8", *SMALL]
    assert main(["train", str(images), *trained, "--out", str(run)]) == 0
    other = tmp_path / "other" / "0.tif"
    other.parent.mkdir()
    tifffile.imwrite(other, values[0, :, :, :1].repeat(3, -1), photometric="rgb")
    told = (
        "{} has 3 bands with config.DATA.TRAIN.IMAGE_MODE=stored; the run takes "
        f"{bands} (config.MODEL.INPUT_CHANNELS)."
    )
    capsys.readouterr()
    out = ["--workers=0", "--out", str(tmp_path / "rows.npy")]
    assert main(["embed", str(run), str(other.parent), *out]) == 2
    assert told.format(other) in capsys.readouterr().err
    assert main(["predict", str(run), str(images / "0.tif"), str(other), "--nearest=0"]) == 2
    assert told.format(other) in capsys.readouterr().err
    mixed = shutil.copy(other, images / "z.tif")
    assert main(["embed", str(run), str(images), "--batch-size=4", *out]) == 2
    assert told.format(mixed) in capsys.readouterr().err
    with pytest.raises(ConfigError, match=f"the image has 3 bands .* takes {bands}"):
        sslengine.load(run).transform(tifffile.imread(other))
    assert main(["embed", str(run), str(photos), *out]) == 2
    assert "0.png: its values are of 8 bits" in capsys.readouterr().err


def test_what_embed_cannot_read_or_write(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = write_photos(tmp_path / "mine", each=2)
    (images / "dark" / "broken.png").write_bytes(b"no image")
    arguments = ["embed", str(run), str(images), "--workers=0", "--out"]
    assert main([*arguments, str(tmp_path / "rows.npz")]) == 0
    told = capsys.readouterr().out
    assert f"no row for 1 that could not be read:\n  {images / 'dark' / 'broken.png'}\n" in told
    assert not [path for path in np.load(tmp_path / "rows.npz")["paths"] if "broken" in path]
    monkeypatch.setattr(embed, "find_spec", lambda name: None)
    monkeypatch.setattr(embed, "embed", None)  # found before anything is computed
    assert main([*arguments, str(tmp_path / "rows.parquet")]) == 2
    assert "install pyarrow" in capsys.readouterr().err


def test_the_trunk_is_a_module_of_torch(run: Path, photos: Path) -> None:
    """Whose features are those of embed."""
    network = sslengine.load(run)
    assert not network.training
    rows = sslengine.embed(run, photos, workers=0)
    image = Image.open(rows.paths[3])
    with torch.no_grad():
        features = network(network.transform(image)[None])
    assert features.shape == (1, network.feature_dim)
    np.testing.assert_allclose(features[0].numpy(), rows.features[3], rtol=1e-4, atol=1e-5)
    network.train()(torch.zeros(2, 3, 32, 32)).sum().backward()
    assert all(each.grad is not None for each in network.parameters())


def test_the_trunk_takes_what_a_file_holds(run: Path, photos: Path, tmp_path: Path) -> None:
    """Transparent, grey, of a palette, CMYK: as embed reads the same file."""
    photo, network = Image.open(photos / "light" / "3.png"), sslengine.load(run)
    pixels = np.dstack(
        [np.asarray(photo), np.arange(52, dtype=np.uint8)[None].repeat(photo.height, 0)]
    )
    cases = {
        "a.png": Image.fromarray(pixels), "b.png": photo.convert("L"),
        "c.png": photo.convert("P"), "d.tif": photo.convert("CMYK"), "e.png": photo.convert("LA"),
        "f.png": photo.convert("1"),
    }  # fmt: skip
    for name, image in cases.items():
        image.save(tmp_path / name)
    rows = sslengine.embed(run, tmp_path, workers=0)
    assert [Path(path).name for path in rows.paths] == list(cases)
    for features, image in zip(rows.features, cases.values(), strict=True):
        made, seen = network.transform(image), Image.new("RGB", image.size, "white")
        seen.paste(image.convert("RGB"), mask=image.getchannel("A") if "A" in image.mode else None)
        assert torch.equal(made, network.transform(seen))
        with torch.no_grad():
            found = network(made[None])[0].numpy()
        np.testing.assert_allclose(found, features, rtol=1e-4, atol=1e-5)
    for array in (np.asarray(photo), np.asarray(photo.convert("L"))):
        assert torch.equal(network.transform(array), network.transform(Image.fromarray(array)))


@pytest.mark.slow
def test_judged_on_what_was_held_out_and_on_other_images(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["judge", str(run)]) == 0
    assert "test: computing features of 4 images" in (run / "log.txt").read_text()
    assert main(["judge", str(run), f"--train={photos}", f"--val={photos}"]) == 0
    assert "test: computing features of 16 images" in (run / "log.txt").read_text()
    assert main(["judge", str(run), f"--train={photos}"]) == 2
    assert "give both" in capsys.readouterr().err
    assert main(["report", str(run)]) == 0
    assert "test images are few" in capsys.readouterr().out
    assert main(["report", str(run), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["network"], first["method"]) == ("resnet10t", "simclr_info_nce_loss")
    assert first["scores"]["linear"] == 100.0


@pytest.mark.parametrize("kind", slow_but(["grey"], ["grey", "bands"]))
def test_images_of_many_bands_or_more_than_8_bits(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From files of tifffile and Pillow to features and scores, without a key of the config."""
    draw = np.random.default_rng(0)
    values = draw.integers(100, 4000, (16, 40, 44, 4 if kind == "bands" else 1), dtype=np.uint16)
    for number, image in enumerate(values):
        (tmp_path / "images" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        file = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        if kind == "bands":
            tifffile = pytest.importorskip("tifffile")
            tifffile.imwrite(file.with_suffix(".tif"), image, planarconfig="contig",
                             photometric="minisblack")  # fmt: skip
        else:
            Image.fromarray(image[..., 0]).save(file)
    images, run = str(tmp_path / "images"), str(tmp_path / "run")
    arguments = [
        "--method=dino" if kind == "grey" else "--method=simclr", "--model=resnet10t", "--out", run,
        *SMALL,
    ]  # fmt: skip
    assert main(["doctor", images]) == 0
    told = capsys.readouterr().out
    assert f"{values.shape[3]} band" in told
    assert f", {values.min()} to {values.max()}: all values are kept" in told
    assert main(["train", images, *arguments, "--show"]) == 0
    _, bands, _, *shown = capsys.readouterr().out.splitlines()
    assert f"{values.shape[3]} band" in bands
    split = yaml.safe_load("\n".join(shown))["config"]["DATA"]["TRAIN"]
    assert split["PIXEL_RANGE"] == [values.min(), values.max()]
    norm = next(each for each in split["TRANSFORMS"] if each["name"] == "Normalize")
    assert norm["mean"] == pytest.approx(values.mean((0, 1, 2)), rel=1e-3)
    assert norm["std"] == pytest.approx(values.std((0, 1, 2)), rel=1e-3)


def test_the_doctor_on_images(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(photos)]) == 0
    text = capsys.readouterr().out
    assert "fewer than 5000: start from trained weights" in text
    assert "median 52" in text
    assert "copies" not in text
    write_photos(tmp_path / "mine", each=1)
    shutil.copy(tmp_path / "mine" / "dark" / "0.png", tmp_path / "mine" / "light" / "copy.png")
    (tmp_path / "mine" / "dark" / "broken.png").write_bytes(b"no image")
    (tmp_path / "mine" / "dark" / "phone.HEIC").write_bytes(b"no image that Pillow reads")
    (tmp_path / "mine" / ".git" / "objects").mkdir(parents=True)
    (tmp_path / "mine" / ".git" / "objects" / "pack").touch()
    (tmp_path / "mine" / "grey").mkdir()
    sideways = Image.Exif()
    sideways[0x0112] = 6
    Image.new("RGB", (9, 7), "red").save(tmp_path / "mine" / "light" / "phone.jpg", exif=sideways)
    for number, alpha in enumerate((0, 254, 255)):
        icon = Image.new("RGBA", (9, 8), (number, 99, 0, alpha))
        icon.save(tmp_path / "mine" / "light" / f"{alpha}.png")
    assert main(["doctor", str(tmp_path / "mine"), "--json"]) == 1
    found = {each["what"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["unreadable"]["value"] == 1
    assert "broken.png" in found["unreadable"]["advice"]
    assert found["copies"]["value"] == 1
    assert "KoLeo" in found["copies"]["advice"]
    assert found["other files"]["value"] == 1
    assert ".heic (1)" in found["other files"]["advice"]
    assert found["empty classes"]["advice"] == "no image: grey"
    assert found["transparent"]["value"] == 2
    assert "DATA.TRAIN.TRANSPARENT" in found["transparent"]["advice"]
    assert found["rotated"]["value"] == 1
    assert "--set DATA.TRAIN.EXIF_ROTATION=true" in found["rotated"]["advice"]
    assert "can hardly be judged" in found["smallest class"]["advice"]


def test_the_doctor_on_a_run_that_has_just_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("config: {}\n")
    for given in (str(tmp_path / "run"), "~/run"):
        assert main(["doctor", given, "--json"]) == 0
        found = {each["what"]: each for each in json.loads(capsys.readouterr().out)}
        assert found["train phases"]["value"] == 0
        assert "no metrics.jsonl yet" in found["train phases"]["advice"]
    write_photos(tmp_path / "photos", each=1)
    (tmp_path / "photos" / "config.yaml").write_text("owner: another program\n")
    assert main(["doctor", "~/photos", "--json"]) == 0


def test_the_doctor_on_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = {each["what"]: each["value"] for each in json.loads(capsys.readouterr().out)}
    assert found["torch"] == torch.__version__
    assert "free disk here" in found


def test_the_manifest_counts_the_images_that_were_trained_on(run: Path) -> None:
    """A quarter of 16 was held out."""
    said = json.loads((run / "weights" / "manifest.json").read_text())["data"]
    assert (said["images"], said["named"], said["read"]) == (12, 12, 12)


@pytest.mark.slow
def test_a_checkpoint_of_vissl_as_a_folder_of_timm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In VISSL's layout, of torchvision's network: its features are the oracle."""
    network = torchvision.models.resnet18().eval()
    for name, buffer in network.named_buffers():
        if "running_var" in name:
            buffer.uniform_(0.5, 1.5)
    network.fc = torch.nn.Identity()
    trunk = {f"_feature_blocks.{name}": each for name, each in network.state_dict().items()}
    parts = {"trunk": trunk, "heads": {"0.clf.0.weight": torch.zeros(9, 512)}}
    saved = {"phase_idx": 9, "iteration": 90, "loss": {}, "type": "checkpoint",
             "classy_state_dict": {"base_model": {"model": parts, "meta": {}}}}  # fmt: skip
    torch.save(saved, tmp_path / "model_final.torch")
    given = ["export", str(tmp_path / "model_final.torch"), str(tmp_path / "out")]
    assert main(given) == 2
    assert "with --config the name of a config" in " ".join(capsys.readouterr().err.split())
    recipe = "--config=pretrain/simsiam/simsiam_1node_resnet50"
    assert main([*given, recipe, "--set=MODEL.TRUNK.RESNETS.DEPTH=50"]) == 1
    assert not (tmp_path / "out").exists()
    assert main([*given, recipe, "--set=MODEL.TRUNK.RESNETS.DEPTH=18"]) == 0
    read = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(read(images), network(images))
    told = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert told["checkpoint"]["file"] == told["started_from"] == "model_final.torch"
    assert "evaluation" not in told
