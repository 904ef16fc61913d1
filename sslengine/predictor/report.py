"""Predictions as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sslengine.errors import readable
from sslengine.predictor.predictor import Prediction, Predictor

TOP = 5  # classes shown in the text


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
