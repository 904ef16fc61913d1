"""Draw each query next to its nearest training images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont, ImageOps

from sslengine.data.decode.files import as_rgb, save_image
from sslengine.predictor.predictor import Neighbour, Prediction, Predictor
from sslengine.predictor.report import named

SIDE, GAP, LINE = 128, 8, 14  # pixels: side of an image, gap between two, height of a text line
LETTERS = 20  # letters that fit below an image


def draw(predictor: Predictor, found: Mapping[str, Prediction]) -> Image.Image:
    """One row for each query: the query, then its neighbours, the most similar first."""
    columns = 1 + max(len(each.nearest) for each in found.values())
    cell = (SIDE + GAP, SIDE + 2 * LINE + GAP)
    sheet = Image.new("RGB", (GAP + columns * cell[0], GAP + len(found) * cell[1]), "white")
    for row, (name, each) in enumerate(found.items()):
        top = GAP + row * cell[1]
        _put(sheet, (GAP, top), predictor.open(name), [Path(name).name, "the query"], "black")
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
