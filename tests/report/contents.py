"""Contents of pages, made by hand: a run that learned, and runs to which something happened."""

from __future__ import annotations

import base64
import math
from dataclasses import fields, is_dataclass, replace
from io import BytesIO
from typing import Any

from PIL import Image

from sslengine.report.content import (
    ClassRow,
    Comparison,
    Content,
    Curve,
    Fact,
    FeatureScore,
    Health,
    Judgement,
    Map,
    Mistake,
    Row,
    Thumbs,
    Verdict,
    Views,
)

EVIL = "</script><script>alert(1)</script>\"' onload='x' \u202eevil\u0007 <b>& {{ 7 * 7 }} \"data:image/png;base64,AA"


def picture(columns: int = 1, rows: int = 1, side: int = 8) -> str:
    file = BytesIO()
    Image.linear_gradient("L").resize((columns * side, rows * side)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def curve(title: str, count: int = 40, **more: Any) -> Curve:
    epochs = [0.5 * (i + 1) for i in range(count)]
    return Curve(title, f"About {title}.", epochs, [5 / (1 + e) + e % 1 for e in epochs], **more)


def image_map(images: int = 40, classes: int = 3) -> tuple[Thumbs, Map]:
    columns = max(1, math.isqrt(images))
    names = [f"image_{i:05d}.png" for i in range(images)]
    labels = [i % classes for i in range(images)]
    thumbs = Thumbs(
        picture(columns, math.ceil(images / columns)), 8, columns, names, labels,
        [f"class {i}" for i in range(classes)],
    )  # fmt: skip
    places = [((i * 37 % images) / images, (i * 53 % images) / images) for i in range(images)]
    nearest = [[(i + 1 + j) % images for j in range(10)] for i in range(images)]
    both = ("untrained", "trained")
    share = {name: [20.0 + 30 * i for i in range(classes)] for name in both}
    return thumbs, Map(
        dict.fromkeys(both, places), dict.fromkeys(both, nearest),
        {"trained": 73.0, "untrained": 60.0}, share, labels, [i / images for i in range(images)],
        list(range(12)),
    )  # fmt: skip


def judgement(name: str = "birds/val") -> Judgement:
    scores = [
        FeatureScore("trained", "trunk", "knn_20", 79.6, (75.8, 82.9)),
        FeatureScore("untrained", "trunk", "knn_20", 67.2, (63.0, 71.2), (12.4, 8.1, 16.7)),
        FeatureScore("raw pixels", "pixels", "knn_20", 78.6, (74.6, 81.9), (1.0, -1.2, 3.2)),
        FeatureScore("trained", "trunk", "linear", 85.2),
    ]
    shares = {"trained": 80.0, "untrained": 60.0, "raw pixels": 70.0}
    classes = [ClassRow(f"class {i}", 50, shares) for i in range(3)]
    mistake = Mistake(3, "image_00003.png", "class 0", "class 1", 90.0)
    return Judgement(
        name, "sha256:a910a746cddd6070", {"train": 2000, "test": 500}, "accuracy", scores, 33.3,
        ["Judged at 224 px."], {"few-shot": {"5 a class": 61.0}}, classes,
        [[40, 6, 4], [5, 44, 1], [0, 9, 41]], [mistake],
    )  # fmt: skip


def healthy() -> Content:
    thumbs, mapped = image_map()
    verdict = Verdict(
        "learned", "complete", "kNN 79.6 %, untrained 67.2: it learned.", "The whole recipe:",
        "sslengine train photos --out longer", ["80 test images are few"],
    )  # fmt: skip
    epochs = list(range(1, 21))
    return Content(
        "birds", "runs/birds", verdict, [Fact("Method", "SimCLR")],
        curves=[curve("Loss", smooth=7), curve("kNN")],
        restarts=[3.5],
        health=[Health("RankMe", "Dimensions", epochs, [30.0 + e for e in epochs], 20.0)],
        findings=[Fact("not finite", "no")],
        spectra={name: [1 / i for i in range(1, 65)] for name in ("start", "middle", "end")},
        thumbs=thumbs, map=mapped, views=[Views("a.png", picture(), [picture()] * 4)],
        judgements=[judgement(), judgement("birds/hard")],
        data=[Fact("images", "2,000"), Fact("copies", "2", "remove them"), Fact("The oddest", "12", thumbs=[1, 2])],
        cost=[Fact("A step", "280 ms")],
        starts=[Fact("1", "sslengine train photos")], commands=[Fact("Python", "import sslengine\n1 < 2")],
        differs=[("OPTIMIZER.num_epochs", "20", "100")], versions=[Fact("torch", "2.14")],
        checkpoints=[Fact("model_final.torch", "step 600")],
    )  # fmt: skip


def failed() -> Content:
    """Four records, of which the last is not finite; no labels, no scores, no map."""
    loss = Curve("Loss", "", [0.1, 0.2, 0.3, 0.4], [5.4, 5.5, 5.5, math.nan], smooth=7)
    verdict = Verdict("failed", "failed", "Failed at step 4: the loss is not finite.")
    return Content("f", "runs/f", verdict, [], curves=[loss], map_command="sslengine report runs/f")


def collapsed() -> Content:
    entropy = Health(
        "Entropy", "of the teacher", [1, 2, 3], [2.0, 0.5, 0.0], 1.0, 4.0, "one-hot since epoch 2"
    )
    verdict = Verdict("collapsing", "complete", "Collapsing since epoch 2: teacher entropy 0.")
    return replace(healthy(), verdict=verdict, health=[entropy])


def unlabelled() -> Content:
    thumbs, mapped = image_map(classes=1)
    return replace(
        healthy(), judgements=[], thumbs=replace(thumbs, labels=[-1] * 40, classes=[]),
        map=replace(mapped, same_class={}, by_class={}),
    )  # fmt: skip


def long(epochs: int = 10_000, metrics: int = 200) -> Content:
    numbers = [float(i) for i in range(epochs)]
    values = [math.sin(i / 900) + (i * 7919 % 101) / 500 for i in range(epochs)]
    values[epochs // 2], values[7] = 53.0, -53.0
    curves = [Curve(f"metric {i}", "", numbers, values, smooth=25) for i in range(metrics)]
    ranks = Health("RankMe", "", numbers, [60.0 + i % 5 for i in range(epochs)], 20.0)
    return replace(healthy(), curves=curves, health=[ranks])


def poison(part: Any) -> Any:
    """Put a hostile text behind each text, but for kinds of features, numbers and pictures."""
    if isinstance(part, str):
        kinds = ("trained", "untrained", "raw pixels", "complete", "data:")
        return part if part.startswith(kinds) or part[:1] in "0123456789" else part + EVIL
    if is_dataclass(part) and not isinstance(part, type):
        return replace(
            part, **{each.name: poison(getattr(part, each.name)) for each in fields(part)}
        )
    if isinstance(part, dict):
        return {poison(key): poison(value) for key, value in part.items()}
    return [poison(each) for each in part] if isinstance(part, (list, tuple)) else part


def comparison(runs: int = 3) -> Comparison:
    rows = [
        Row(
            f"runs/lr{i}", "complete", {"OPTIMIZER.lr": str(0.001 * 2**i), "SEED": str(i)},
            [FeatureScore("trained", "trunk", "knn_20", 70.0 + i % 7, (66.0, 78.0))],
            {"last loss": 2.5 - i / 100}, "600 steps", 200.0 + i, ["collapsed"] if i == 1 else [],
            [curve("Loss", smooth=5), curve("Gradient norm")],
        )
        for i in range(runs)
    ]  # fmt: skip
    names = [row.name for row in rows] + ["untrained"]
    sure, unsure = (5.0, 1.2, 8.8), (0.6, -1.8, 3.0)
    cells = [
        [None if i == j else sure if (i + j) % 2 else unsure for j in range(runs + 1)]
        for i in range(runs)
    ]
    return Comparison(
        "runs of birds", "A rate of 0.004 is best.", "By 5 points.", "sslengine train photos", rows,
        [FeatureScore("untrained", "trunk", "knn_20", 67.0), FeatureScore("raw pixels", "pixels", "knn_20", 66.0)],
        names, {"knn_20": cells}, "OPTIMIZER.lr", [("knn_20", names[0], "no")],
        ["One pair of seeds."],
    )  # fmt: skip
