"""`sslengine rank` on the checkpoints of a real run, and on runs that were judged."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from sklearn.neighbors import KNeighborsClassifier

import sslengine
from sslengine.command.front import main
from sslengine.launch.cli import INTERRUPTED
from sslengine.predictor import Predictor
from sslengine.predictor.checkpoints import read_checkpoints
from sslengine.registry import LABEL_FREE
from tests.command.photos import write_photos
from tests.predictor.runs import CLASSES, EACH, make_classifier
from tests.registries import as_before
from tests.tail import slow_but

IMAGES, VIEWS = CLASSES * EACH, 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small one of three epochs, on images of three classes."""
    folder = tmp_path_factory.mktemp("ranked")
    make_classifier(
        folder, OPTIMIZER__num_epochs=3, CHECKPOINT__CHECKPOINT_FREQUENCY=1,
        CHECKPOINT__KEEP_LAST=-1,
    )  # fmt: skip
    return folder / "run"


def ranked(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert main(["rank", *map(str, arguments), "--json", "--workers=0", "--device=cpu"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def table(run: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return ranked(capsys, run / "checkpoints", f"--views={VIEWS}")


def test_checkpoints_of_a_run(run: Path, table: dict[str, Any]) -> None:
    names = [Path(each).name for each in table["checkpoints"]]
    wanted = ["model_phase0.torch", "model_phase1.torch", "model_final_checkpoint_phase2.torch"]
    assert names == wanted
    metrics = table["metrics"]
    assert {*metrics} == {*LABEL_FREE.names(), "knn@20", "linear", "clid_over"}

    for number, path in enumerate(table["checkpoints"]):
        folder = _copied(run, Path(path))
        features = sslengine.embed(folder, run.parent / "images", workers=0).features.astype(
            np.float64
        )
        s = np.linalg.svd(features, compute_uv=False)
        p = s / s.sum() + 1e-7
        found = metrics["rankme"]["values"][number]
        assert found["value"] == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-4)
        assert found["n"] == IMAGES
        assert metrics["knn@20"]["values"][number]["value"] == pytest.approx(_score(features))
    values = [each["value"] for each in metrics["rankme"]["values"]]
    order = sorted(range(3), key=lambda each: -values[each])
    assert metrics["rankme"]["order"] == [table["checkpoints"][each] for each in order]
    assert metrics["two_nn"]["order"] == []
    assert metrics["lidar"]["values"][0]["n"] == IMAGES
    assert 1 < metrics["lidar"]["values"][0]["value"] < IMAGES
    assert "first checkpoint" in metrics["checkpoint_consistency"]["values"][0]["why"]
    assert metrics["checkpoint_consistency"]["values"][1]["value"] > 0
    assert "100 rows" in metrics["alpha_req"]["values"][0]["why"]


def test_of_several_runs_one_that_is_refused_is_left_out(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = shutil.copytree(run, tmp_path / "given", symlinks=True)
    text = (given / "config.yaml").read_text()
    (given / "config.yaml").write_text(text.replace("PLUGINS: []", "PLUGINS: [of_a_stranger]"))
    arguments = [str(given / "checkpoints"), str(run / "checkpoints"), "--views=0", "--workers=0"]
    assert main(["rank", *arguments, "--json"]) == 0
    told = capsys.readouterr()
    assert {Path(each).parents[1] for each in json.loads(told.out)["checkpoints"]} == {run}
    assert "of_a_stranger" in told.err
    assert main(["rank", str(given / "checkpoints")]) == 2


def _copied(run: Path, checkpoint: Path) -> Path:
    """A run that has this checkpoint alone."""
    folder = run.parent / checkpoint.stem
    (folder / "checkpoints").mkdir(parents=True)
    shutil.copy(run / "config.yaml", folder)
    for path in (checkpoint, checkpoint.with_suffix(".json")):
        shutil.copy(path, folder / "checkpoints")
    return folder


def _score(features: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    labels = np.arange(IMAGES) // EACH
    order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(0)).numpy()
    train, test = order[: IMAGES // 2], order[IMAGES // 2 :]
    made = KNeighborsClassifier(
        IMAGES // 2, metric="cosine", weights=lambda far: np.exp(-far / 0.1)
    )
    return 100 * float(made.fit(features[train], labels[train]).score(features[test], labels[test]))


@pytest.mark.slow
def test_nothing_is_computed_twice_also_after_a_kill(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    compute = Predictor.trunk_features

    def counted(predictor: Predictor, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        calls.append(len(batch))
        if len(calls) == cut:
            raise KeyboardInterrupt
        return compute(predictor, batch)

    cut = 0
    copy = shutil.copytree(run, tmp_path / "run", symlinks=True)
    shutil.rmtree(copy / "features", ignore_errors=True)
    monkeypatch.setattr(Predictor, "trunk_features", counted)
    asked = copy / "checkpoints", f"--views={VIEWS}"
    whole = ranked(capsys, *asked)
    assert sum(calls) == 3 * IMAGES * (1 + VIEWS)
    once, cut = len(calls), -1
    assert ranked(capsys, *asked) == whole
    assert len(calls) == once
    ranked(capsys, copy / "checkpoints", "--views=0", "--rows=10")  # others
    assert sum(calls[once:]) == 3 * 10

    shutil.rmtree(copy / "features")
    calls.clear()
    cut = once // 2
    assert main(["rank", *map(str, asked), "--json", "--workers=0", "--device=cpu"]) == INTERRUPTED
    assert ranked(capsys, *asked) == whole
    assert len(calls) < once + once // 3 + 1  # one checkpoint's, at most, once more


def test_other_images_and_single_checkpoints(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = write_photos(tmp_path / "others", 10) / "dark"  # without classes
    one = run / "checkpoints" / "model_phase1.torch"
    found = ranked(capsys, one, "--views=0", "--data", others)
    assert found["checkpoints"] == [str(one)]
    assert found["metrics"]["rankme"]["values"][0]["n"] == 10
    assert "no labels" in found["metrics"]["knn@20"]["values"][0]["why"]
    assert found["metrics"]["rankme"]["spearman"] is None


def test_a_broken_checkpoint_is_left_out(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    copy = shutil.copytree(run, tmp_path / "copy", symlinks=True)
    with (copy / "checkpoints" / "model_phase0.torch").open("r+b") as file:
        file.write(b"broken")
    found = ranked(capsys, copy / "checkpoints", "--views=0")
    assert len(found["checkpoints"]) == 2
    assert "left out" in caplog.text
    assert "model_phase0.torch" in caplog.text


def test_a_metric_in_a_file_of_the_users(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/label_free.md has it."""
    page = Path(__file__).parents[2] / "docs" / "label_free.md"
    code = page.read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "my_label_free.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    with as_before(LABEL_FREE):
        found = ranked(capsys, run / "checkpoints", "--views=0", "--plugin=my_label_free")
    values = [each["value"] for each in found["metrics"]["mean_norm"]["values"]]
    assert min(values) > 0
    assert found["metrics"]["mean_norm"]["order"][0] == found["checkpoints"][np.argmax(values)]


def test_what_is_no_checkpoint(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(run / "checkpoints" / "model_phase0.torch", tmp_path)
    assert main(["rank", str(tmp_path / "model_phase0.torch")]) == 2
    assert "with the config.yaml of their run" in " ".join(capsys.readouterr().err.split())


def views_of(run: Path, *overrides: str) -> Any:
    # A loss that takes any number of views.
    overrides = ("config.LOSS.name=CrossEntropyLoss", *overrides)
    predictor = Predictor(run, nearest=0, device="cpu", overrides=overrides)
    checkpoint = run / "checkpoints" / "model_phase0.torch"
    (read,) = read_checkpoints(predictor, [checkpoint], 100, VIEWS)
    return read.inputs


def test_views_are_those_of_one_image(run: Path) -> None:
    """Without random transforms all are equal; images differ."""
    fixed = "[{name: Resize, size: [8, 8]}, {name: ToTensor}]"
    inputs = views_of(run, f"config.DATA.TRAIN.TRANSFORMS={fixed}")
    assert inputs.views.shape == (IMAGES, VIEWS, 32)
    assert inputs.projections.shape[:2] == (IMAGES, VIEWS)
    for rows in (inputs.views, inputs.projections):
        assert torch.allclose(rows[:, 0], rows[:, 2], rtol=1e-4, atol=1e-5)
        assert not torch.allclose(rows[0], rows[-1], rtol=1e-2)
    random = views_of(run)
    for one, other in ((0, 1), (0, 2), (1, 2)):  # two of an epoch, and the next one's
        assert not torch.allclose(random.views[:, one], random.views[:, other], rtol=1e-2)
    assert torch.equal(random.views, views_of(run).views)


@pytest.mark.parametrize("method", slow_but(["ibot"], ["ibot", "dinov2", "msn", "capi", "simmim"]))
def test_methods_with_inputs_by_name(method: str, tmp_path: Path) -> None:
    """The model of a method that owns its network has no head: all metrics of views but LiDAR."""
    run, sizes = tmp_path / "run", ["config.DATA.TRAIN.DATA_LIMIT=16"]
    sizes += ["config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=16", "config.OPTIMIZER.num_epochs=1"]
    assert main([f"config=quickstart/{method}", *sizes, f"config.CHECKPOINT.DIR={run}"]) == 0
    predictor = Predictor(run, nearest=0, device="cpu")
    (read,) = read_checkpoints(predictor, [predictor.checkpoint], 16, VIEWS)
    assert read.inputs.views is not None
    assert read.inputs.views.shape[:2] == (16, VIEWS)
    assert read.inputs.missing["projections"] == "the model has no projection head"


@pytest.fixture(scope="module")
def judged(run: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One run, judged on its images, on a few of them, and on several classes of each."""
    folder, images = tmp_path_factory.mktemp("judged"), run.parent / "images"
    shutil.copytree(images, folder / "few", ignore=shutil.ignore_patterns("*[13579].png"))
    rows = [f"{path},{'ABC'[n % 3]}+D" for n, path in enumerate(sorted(images.rglob("*.png")))]
    (folder / "several.csv").write_text("\n".join(["path,label", *rows, ""]))
    separated = [f"--set=DATA.{split}.LABEL_SEPARATOR='+'" for split in ("TRAIN", "TEST")]
    given: dict[str, tuple[Path, list[str]]] = {
        "all": (images, []), "again": (images, []), "few": (folder / "few", []),
        "several": (folder / "several.csv", separated), "never": (images, []),
    }  # fmt: skip
    for name, (data, more) in given.items():
        copy = shutil.copytree(run, folder / name / "run", symlinks=True)
        if name != "never":
            assert main(["judge", str(copy), f"--train={data}", f"--val={data}", *more]) == 0
    return [folder / name / "run" for name in given]


def compared(capsys: pytest.CaptureFixture[str], *runs: Path) -> tuple[str, Any]:
    """What is shown, and the document."""
    names = [*map(str, runs)]
    capsys.readouterr()
    assert main(["report", *names, f"--out={runs[0] / 'page.html'}"]) == 0
    shown = capsys.readouterr().out
    assert main(["report", *names, "--json"]) == 0
    return shown, json.loads(capsys.readouterr().out)


def test_scores_that_cannot_be_compared(
    judged: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    whole, again, few, several, never = judged
    shown, document = compared(capsys, whole, again, never)
    assert "cannot be compared" not in shown
    assert document["differs_in"] == []
    found = {Path(each["folder"]): each for each in document["runs"]}
    assert [found[each]["metric"] for each in (whole, never)] == ["accuracy", None]
    assert found[whole]["images"] == found[again]["images"]
    assert found[whole]["images"]["test"] == IMAGES

    shown, document = compared(capsys, whole, few)
    assert document["differs_in"] == ["images"]
    assert "different metrics" not in shown
    note = shown.partition("note  scores on different images cannot be compared:")[2]
    for count, data in ((IMAGES, "images"), (IMAGES // 2, "few")):
        (line,) = (each for each in note.splitlines() if f"test {count}," in each)
        assert line.endswith(f"/{data}")

    shown, document = compared(capsys, whole, several)
    assert document["differs_in"] == ["metric", "images"]
    assert "scores of different metrics cannot be compared: " in shown
    assert "TRAIN.labels " in shown


def judge_copy(run: Path, copy: Path, data: Path) -> Path:
    shutil.copytree(run, copy, symlinks=True)
    assert main(["judge", str(copy), f"--train={data}", f"--val={data}"]) == 0
    return copy


def invert(file: Path) -> None:
    """As another program writes it."""
    with Image.open(file) as image:
        image.load()
    ImageOps.invert(image.convert("RGB")).save(file)


def test_images_are_those_of_their_fingerprint_wherever_they_are(
    run: Path, judged: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, few, never = judged[0], judged[2], judged[4]
    moved = shutil.copytree(run.parent / "images", tmp_path / "moved")
    before = judge_copy(never, tmp_path / "before", moved)
    invert(next(moved.rglob("*.png")))
    after = judge_copy(never, tmp_path / "after", moved)

    shown, document = compared(capsys, whole, before)
    assert document["differs_in"] == []
    assert "cannot be compared" not in shown
    shown, document = compared(capsys, before, after)
    assert document["differs_in"] == ["images"]
    assert "scores on different images cannot be compared" in shown
    assert len({*re.findall(r"TEST.fingerprint [0-9a-f]{12}", shown)}) == 2

    for each in (before, after):  # as an earlier version wrote it
        report = json.loads((each / "evaluation.json").read_text())
        del report["images"]
        (each / "evaluation.json").write_text(json.dumps(report))
    assert compared(capsys, before, after)[1]["differs_in"] == []
    assert compared(capsys, whole, before)[1]["differs_in"] == ["images"]
    assert compared(capsys, few, whole)[1]["differs_in"] == ["images"]


def test_the_fingerprint_is_that_of_the_images_whose_features_are_kept(
    run: Path, judged: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a file with another content, and the size and time that it had, the features are kept."""
    moved = shutil.copytree(run.parent / "images", tmp_path / "moved")
    run = judge_copy(judged[4], tmp_path / "run", moved)
    first = json.loads((run / "evaluation.json").read_text())
    assert {split: each["images"] for split, each in first["images"].items()} == {
        "TRAIN": IMAGES, "TEST": IMAGES,
    }  # fmt: skip
    shown, _ = compared(capsys, run)
    digits = [first["images"][split]["fingerprint"][7:19] for split in ("TRAIN", "TEST")]
    assert re.search(rf"fingerprint +train {digits[0]}, test {digits[1]}\n", shown)
    file = next(moved.rglob("*.png"))
    found, content = file.stat(), bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert main(["judge", str(run), f"--train={moved}", f"--val={moved}"]) == 0
    assert json.loads((run / "evaluation.json").read_text())["images"] == first["images"]
