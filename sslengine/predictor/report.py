"""Predictions as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont, ImageOps

from sslengine.data.decode.decoding import as_rgb, save_image
from sslengine.errors import readable
from sslengine.predictor.predictor import Neighbour, Prediction, Predictor

TOP = 5  # classes shown in the text
SIDE, GAP, LINE = 128, 8, 14  # pixels: side of an image, gap between two, height of a text line
LETTERS = 20  # letters that fit below an image


def as_json(predictor: Predictor, found: Mapping[str, Prediction]) -> dict[str, Any]:
    return {
        "run": str(predictor.run_folder),
        "checkpoint": predictor.checkpoint.name,
        "network": predictor.network,
        "class_names": predictor.class_names,
        "transforms": predictor.view.description,
        "images": [
            {
                "image": name,
                "features": each.features.tolist(),
                "classes": None if each.classes is None else each.classes.tolist(),
                "nearest": [asdict(neighbour) for neighbour in each.nearest],
            }
            for name, each in found.items()
        ],
    }


def as_text(predictor: Predictor, found: Mapping[str, Prediction]) -> str:
    lines = [
        f"checkpoint  {readable(predictor.checkpoint)}",
        f"network     {predictor.network}",
        f"transforms  {predictor.view.description}",
    ]
    for name, each in found.items():
        lines += ["", readable(name), *_lines(each, predictor.class_names)]
    return "\n".join(lines)


def named(label: Any, names: Sequence[str]) -> str:
    if isinstance(label, list):
        return ", ".join(named(each, names) for each in label) or "none"
    known = isinstance(label, int) and 0 <= label < len(names)
    return readable(names[label]) if known else readable(str(label))


def _lines(prediction: Prediction, names: Sequence[str] = ()) -> Iterator[str]:
    features = prediction.features
    yield f"  features  {len(features)} numbers of norm {features.norm():.4g}"
    if prediction.classes is not None:
        top = prediction.classes.topk(min(TOP, len(prediction.classes)))
        classes = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        yield "  classes   " + "  ".join(
            f"{named(each, names)}: {100 * p:.1f} %" for each, p in classes
        )
    for number, neighbour in enumerate(prediction.nearest):
        label = "" if neighbour.label is None else f", class {named(neighbour.label, names)}"
        head = "  nearest " if number == 0 else "          "
        which = f"{readable(neighbour.path)} (number {neighbour.index}{label})"
        yield f"{head}  {neighbour.similarity:.3f}  {which}"


def draw(predictor: Predictor, found: Mapping[str, Prediction]) -> Image.Image:
    """Draw a row for each query: the query, then its neighbours, the most similar first."""
    columns = 1 + max(len(each.nearest) for each in found.values())
    cell = (SIDE + GAP, SIDE + 2 * LINE + GAP)
    sheet = Image.new("RGB", (GAP + columns * cell[0], GAP + len(found) * cell[1]), "white")
    for row, (name, each) in enumerate(found.items()):
        top = GAP + row * cell[1]
        _put(sheet, (GAP, top), predictor.read(name), [Path(name).name, "the query"], "black")
        for column, neighbour in enumerate(each.nearest, start=1):
            below = [f"{neighbour.similarity:.3f}  no. {neighbour.index}"]
            below += [] if neighbour.label is None else [_class(predictor, neighbour)]
            try:
                image = predictor.training_image(neighbour.index)
            except Exception:  # decoders raise many kinds
                image = Image.new("RGB", (SIDE, SIDE), "grey")
                below = [below[0], "cannot be read"]
            _put(sheet, (GAP + column * cell[0], top), image, below, None)
    return sheet


def _class(predictor: Predictor, neighbour: Neighbour) -> str:
    return f"class {named(neighbour.label, predictor.class_names)}"


def save(path: Path, predictor: Predictor, found: Mapping[str, Prediction]) -> None:
    save_image(draw(predictor, found), path)


def _put(
    sheet: Image.Image, at: tuple[int, int], image: Any, text: list[str], frame: str | None
) -> None:
    left, top = at
    small = ImageOps.pad(as_rgb(image), (SIDE, SIDE), color="white")
    sheet.paste(small, at)
    drawing, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    if frame:
        drawing.rectangle((left - 2, top - 2, left + SIDE + 1, top + SIDE + 1), None, frame, 2)
    for number, line in enumerate(text):
        short = line if len(line) <= LETTERS else f"{line[: LETTERS - 3]}..."
        drawing.text((left, top + SIDE + 2 + number * LINE), short, "black", font)
