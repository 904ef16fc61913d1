"""Gather what the page of a run shows, from its folder: nothing is trained, no image is opened."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from sslengine.atomic import write_whole
from sslengine.config.run_folder import open_named
from sslengine.dotted import below
from sslengine.errors import SSLEngineError
from sslengine.monitor.run_facts import (
    JUDGEMENTS,
    PIXELS,
    TRAINED,
    UNTRAINED,
    Facts,
    checkpoints_in,
    most_neighbours,
    name_of_images,
    read_facts,
    read_judgements,
    scores_of,
)
from sslengine.monitor.verdict import judge_run, share_waited
from sslengine.report.comparison import TYPED, origins_in
from sslengine.report.content import ClassRow, Content, Fact, Judgement
from sslengine.report.page import render
from sslengine.report.parts import Parts, read_json, read_parts
from sslengine.report.read_curves import read_curves, read_health, read_restarts

PAGE = "report.html"
SHOWN = 12  # digits of a fingerprint
KINDS = (TRAINED, UNTRAINED, PIXELS)


def write_page(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a run from what its folder holds; return its file."""
    place = out or folder / PAGE
    write_whole(place, render(gather(read_facts(folder))).encode())
    return place


def gather(facts: Facts) -> Content:
    parts = read_parts(facts.folder)
    there = checkpoints_in(facts.folder / "checkpoints")
    judgements = [_judgement(facts.folder, each, parts) for each in read_judgements(facts)]
    return Content(
        name="/".join(facts.folder.absolute().parts[-2:]), folder=str(facts.folder),
        verdict=judge_run(facts), facts=[*_facts(facts)],
        curves=read_curves(facts), restarts=read_restarts(facts), health=read_health(facts),
        findings=[Fact(each.what, each.value, each.advice) for each in facts.found],
        spectra=_read_spectra(facts.answers),
        thumbs=parts.thumbs, map=parts.map, views=parts.views,
        judgements=judgements, data=parts.data, cost=[*_cost(facts)], starts=[*_starts(facts)],
        commands=[*_commands(facts)], differs=[*_differs(facts)], versions=[*_versions(facts)],
        checkpoints=[*_checkpoints(facts.folder / "checkpoints")],
        map_command="" if parts.map or not there else f"sslengine report {facts.run} --map",
    )  # fmt: skip


def format_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _facts(facts: Facts) -> Iterator[Fact]:
    """Yield what is below the sentence."""
    config, start = facts.config, facts.starts[-1] if facts.starts else {}
    if not config:
        return
    yield Fact("method", facts.method)
    yield Fact("network", facts.network)
    if steps := facts.status.steps:
        epochs = below(config, ["OPTIMIZER", "num_epochs"])
        batch = below(config, ["DATA", "TRAIN", "BATCHSIZE_PER_REPLICA"], 0)
        batch *= start.get("ranks", 1)
        length = f"{facts.status.step:,} of {steps:,} steps of {batch:,} images"
        yield Fact("length", f"{epochs} epochs, {length}" if epochs else length)
    if start:
        gpus, ranks = start.get("gpus") or [], start.get("ranks", 1)
        device = gpus[0] if gpus and start.get("device") == "cuda" else str(start.get("device"))
        yield Fact("machine", f"{ranks} x {device}" if ranks > 1 else device)
    if facts.seconds:
        yield Fact("time", format_seconds(facts.seconds))


# ---- scores


def _judgement(folder: Path, report: Mapping[str, Any], parts: Parts) -> Judgement:
    images = report.get("images", {})
    name = name_of_images(images)
    prints = [str(each.get("fingerprint") or "").removeprefix("sha256:")[:SHOWN]
              for each in images.values()]  # fmt: skip
    rows = report.get("scores", ())
    about: Mapping[str, Any] = rows[0].get("about", {}) if rows else {}
    protocols = {
        f"{each['features']}, {protocol}": {
            metric: value for metric, value in row.get("metrics", {}).items()
            if isinstance(value, (int, float))
        }
        for each in rows for protocol, row in each.get("protocols", {}).items()
    }  # fmt: skip
    answered = _answers(folder / JUDGEMENTS / f"{name}.npz", report, parts, images)
    return Judgement(
        name=str(report.get("data") or name), fingerprint=", ".join(filter(None, prints)),
        images=about.get("images", {}), metric=str(report.get("metric", "accuracy")),
        scores=scores_of(report), chance=report.get("chance"), notes=report.get("notes", ()),
        protocols=protocols, **answered,
    )  # fmt: skip


def _answers(
    file: Path, report: Mapping[str, Any], parts: Parts, images: Mapping[str, Any]
) -> dict[str, Any]:
    """Return classes, confusion and mistakes, by the answers to each test image."""
    if not file.is_file():
        return {}
    with np.load(file, allow_pickle=False) as held:
        answers = {name: held[name] for name in held.files}
    wanted, own = answers["wanted"], _first(answers, TRAINED)
    if own is None:
        return {}
    count = max(int(wanted.max()), int(own.max())) + 1
    names = report.get("classes") or list(map(str, range(count)))
    rights = {kind: (found == wanted).reshape(-1, len(wanted)).mean(axis=0)
              for kind in KINDS if (found := _first(answers, kind)) is not None}  # fmt: skip
    rows, there = [], np.unique(wanted)
    for number in there.tolist():
        some = wanted == number
        shares = {kind: 100 * float(right[some].mean()) for kind, right in rights.items()}
        rows.append(ClassRow(names[number], int(some.sum()), shares))
    confusion = np.bincount(wanted * count + own, minlength=count**2).reshape(count, count)
    tested = str(images.get("TEST", {}).get("fingerprint") or "")
    mistakes = (parts.mistakes(answers["numbers"], wanted, own)
                if tested and parts.fingerprint == tested else [])  # fmt: skip
    shown = confusion[np.ix_(there, there)].tolist()
    return {"classes": rows, "confusion": shown, "mistakes": mistakes}


def _first(answers: Mapping[str, Any], kind: str) -> Any:
    """Return the answers of one kind of features, by their last layer and most neighbours."""
    found = [name.rpartition("/") for name in answers if name.startswith(f"{kind}/")]
    if not found:
        return None
    layer = found[-1][0]
    metric = most_neighbours(name for place, _, name in found if place == layer)
    return answers.get(f"{layer}/{metric}")


def _read_spectra(file: Path) -> dict[str, list[float]]:
    if not file.is_file():
        return {}
    with np.load(file, allow_pickle=False) as held:
        return {kind: held[f"spectrum/{kind}"].tolist() for kind in (UNTRAINED, TRAINED)
                if f"spectrum/{kind}" in held.files}  # fmt: skip


# ---- cost, starts, use


def _cost(facts: Facts) -> Iterator[Fact]:
    speeds = [row["images_per_s"] for row in facts.rows if "images_per_s" in row]
    if facts.seconds:
        yield Fact("time", f"{format_seconds(facts.seconds)} of training")
    if speeds:
        yield Fact("speed", f"{median(speeds):,.0f} images per second (median)")
    waited = share_waited(facts)
    if waited:
        advice = "more DATA.NUM_DATALOADER_WORKERS would help" if waited > 0.5 else ""
        yield Fact("waiting for images", f"{waited:.0%} of a step", advice)
    for name, value in (facts.status.memory or {}).items():
        title = {"rss_gb": "memory of the process", "gpu_allocated_gb": "GPU memory of tensors"}
        yield Fact(title.get(name, "GPU memory reserved"), f"{value:.2f} GB")
    if len(facts.starts) > 1:
        yield Fact("restarts", str(len(facts.starts) - 1))


def _starts(facts: Facts) -> Iterator[Fact]:
    for each in facts.starts:
        where = f"{each.get('host')}, {each.get('ranks')} x {each.get('device')}"
        yield Fact(str(each.get("time")), f"from step {each.get('step')} on {where}",
                   f"code {each.get('code') or each.get('sslengine')}")  # fmt: skip


def _commands(facts: Facts) -> Iterator[Fact]:
    run = str(facts.folder)
    if not checkpoints_in(facts.folder / "checkpoints"):
        return
    yield Fact("Features in Python", "\n".join((
        "import sslengine",
        f"found = sslengine.embed({run!r}, {'images'!r})",
        "found.features  # a row for each of found.paths",
    )))  # fmt: skip
    yield Fact("Features in a file",
                  f"sslengine embed {facts.run} IMAGES --out features.parquet")  # fmt: skip
    yield Fact("Classes and nearest images", f"sslengine predict {facts.run} IMAGE")
    yield Fact("Weights for other programs",
                  f"sslengine export {facts.run} --to timm --out weights")  # fmt: skip
    if facts.command:
        yield Fact("This run again", facts.command, f"in {facts.starts[-1].get('folder')}")


def _differs(facts: Facts) -> Iterator[tuple[str, str, str]]:
    """Yield the keys that were typed, their values, and those of the recipe where it is known."""
    origins, recipe = origins_in(facts.folder / "config.yaml"), _recipe(facts)
    for key in (key for key, origin in origins.items() if origin == TYPED):
        value = below(facts.config, key.split("."), "")
        usual = below(recipe, key.split("."), "")
        if not isinstance(value, Mapping) and str(value) != str(usual):
            yield key, _told(value), _told(usual)


def _told(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, (list, dict)) else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _recipe(facts: Facts) -> Mapping[str, Any]:
    """Return the config of the recipe as it ships, without the values that were typed."""
    name = facts.starts[-1].get("recipe") if facts.starts else None
    if not isinstance(name, str):
        return {}
    with suppress(SSLEngineError, OSError):
        config: Any = OmegaConf.to_container(open_named([f"config={name}"], []).config)
        return dict(config)
    return {}


def _versions(facts: Facts) -> Iterator[Fact]:
    start = facts.starts[-1] if facts.starts else {}
    packages = read_json(facts.folder / "environment.json").get("packages", {})
    for name in ("sslengine", "code", "python", "torch", "torchvision", "timm", "numpy"):
        if version := start.get(name) or packages.get(name):
            yield Fact(name, str(version))


def _checkpoints(folder: Path) -> Iterator[Fact]:
    for name in checkpoints_in(folder):
        path = folder / name
        files: Sequence[Path] = [*path.rglob("*")] if path.is_dir() else [path]
        size = sum(each.stat().st_size for each in files if each.is_file())
        yield Fact(name, f"{size / 1e6:.1f} MB")
