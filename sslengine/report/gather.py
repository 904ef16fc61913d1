"""Gather what the page of a run shows, from its folder: nothing is trained, no image is opened."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from sslengine.atomic import write_whole
from sslengine.config.run_folder import open_named
from sslengine.dotted import below
from sslengine.errors import SSLEngineError
from sslengine.monitor.collapse import END, MIDDLE, SPECTRA, START
from sslengine.monitor.history import read_lines
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
MEMORY = {
    "rss_gb": "memory of the process",
    "gpu_allocated_gb": "GPU memory of tensors",
    "gpu_reserved_gb": "GPU memory reserved",
}
PYTHON = """import sslengine
found = sslengine.embed({folder!r}, 'images')
found.features  # a row for each of found.paths"""


def write_page(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a run from what its folder holds; return its file."""
    place = out or folder / PAGE
    write_whole(place, render(gather(read_facts(folder))).encode())
    return place


def gather(facts: Facts) -> Content:
    parts = read_parts(facts.folder)
    checkpoints = _list_checkpoints(facts.folder / "checkpoints")
    return Content(
        name="/".join(facts.folder.absolute().parts[-2:]), folder=str(facts.folder),
        verdict=judge_run(facts), facts=_list_facts(facts) if facts.config else [],
        curves=read_curves(facts), restarts=read_restarts(facts), health=read_health(facts),
        findings=[Fact(each.what, each.value, each.advice) for each in facts.found],
        spectra=_read_spectra(facts.folder / SPECTRA),
        thumbs=parts.thumbs, map=parts.map, views=parts.views,
        judgements=[_judgement(facts, each, parts) for each in read_judgements(facts)],
        data=parts.data, cost=_list_cost(facts), starts=[*map(_describe_start, facts.starts)],
        commands=_list_commands(facts) if checkpoints else [], differs=[*_differs(facts)],
        versions=_list_versions(facts), checkpoints=checkpoints,
        map_command="" if parts.map or not checkpoints else f"sslengine report {facts.run} --map",
    )  # fmt: skip


def _read_spectra(file: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for line in read_lines(file):
        with suppress(KeyError, TypeError, ValueError):
            moment, values = line["moment"], [float(each) for each in line["values"]]
            found |= {moment: values} if moment in (START, MIDDLE, END) and values else {}
    return found


def _drop_empty(*facts: Fact) -> list[Fact]:
    """Leave out those without a value."""
    return [each for each in facts if each.value]


def _list_facts(facts: Facts) -> list[Fact]:
    """List what is below the sentence."""
    start = facts.starts[-1] if facts.starts else {}
    ranks, gpus = start.get("ranks", 1), start.get("gpus")
    epochs = below(facts.config, ["OPTIMIZER", "num_epochs"])
    batch = ranks * below(facts.config, ["DATA", "TRAIN", "BATCHSIZE_PER_REPLICA"], 0)
    made = f"{facts.status.step:,} of {facts.status.steps:,} steps of {batch:,} images"
    length = f"{epochs} epochs, {made}" if epochs else made
    machine = str(gpus[0] if gpus and start.get("device") == "cuda" else start.get("device", ""))
    return _drop_empty(
        Fact("method", facts.method),
        Fact("network", facts.network),
        Fact("length", length if facts.status.steps else ""),
        Fact("machine", f"{ranks} x {machine}" if ranks > 1 else machine),
        Fact("time", str(timedelta(seconds=round(facts.seconds))) if facts.seconds else ""),
    )


# ---- scores


def _judgement(facts: Facts, report: Mapping[str, Any], parts: Parts) -> Judgement:
    images, rows = report.get("images", {}), report.get("scores", ())
    name = name_of_images(images)
    prints = [str(each.get("fingerprint") or "") for each in images.values()]
    protocols = {
        f"{each['features']}, {protocol}": {
            metric: value for metric, value in row.get("metrics", {}).items()
            if isinstance(value, (int, float))
        }
        for each in rows for protocol, row in each.get("protocols", {}).items()
    }  # fmt: skip
    tested = images.get("TEST", {}).get("fingerprint")
    answers, classes = _load(facts.folder / JUDGEMENTS / f"{name}.npz"), report.get("classes", ())
    return Judgement(
        name="/".join(Path(str(report.get("data") or name)).parts[-2:]),
        fingerprint=", ".join(each.removeprefix("sha256:")[:SHOWN] for each in prints if each),
        images=rows[0].get("about", {}).get("images", {}) if rows else {},
        metric=str(report.get("metric", "accuracy")), scores=scores_of(report),
        chance=report.get("chance"), notes=report.get("notes", ()), protocols=protocols,
        **_sort_by_class(answers, classes, parts if tested == parts.fingerprint else Parts()),
    )  # fmt: skip


def _sort_by_class(
    answers: Mapping[str, Any], names: Sequence[str], parts: Parts
) -> dict[str, Any]:
    """Return classes, confusion and mistakes, by the answers to each test image."""
    found = {kind: each for kind in KINDS if (each := _first(answers, kind)) is not None}
    if TRAINED not in found:
        return {}
    wanted, own = answers["wanted"], found[TRAINED]
    count = max(int(wanted.max()), int(own.max())) + 1
    names, there = names or list(map(str, range(count))), np.unique(wanted)
    rights = {kind: (each == wanted).reshape(-1, len(wanted)).mean(axis=0)
              for kind, each in found.items()}  # fmt: skip
    rows = []
    for number in there.tolist():
        some = wanted == number
        shares = {kind: 100 * float(right[some].mean()) for kind, right in rights.items()}
        rows.append(ClassRow(names[number], int(some.sum()), shares))
    confusion = np.bincount(wanted * count + own, minlength=count**2).reshape(count, count)
    return {
        "classes": rows,
        "confusion": confusion[np.ix_(there, there)].tolist(),
        "mistakes": parts.mistakes(answers["numbers"], wanted, own),
    }


def _first(answers: Mapping[str, Any], kind: str) -> Any:
    """Return the answers of one kind of features, by their last layer and most neighbours."""
    found = [name.rpartition("/") for name in answers if name.startswith(f"{kind}/")]
    if not found:
        return None
    layer = found[-1][0]
    metric = most_neighbours(name for place, _, name in found if place == layer)
    return answers.get(f"{layer}/{metric}")


def _load(file: Path) -> dict[str, Any]:
    """Read arrays; {} if there is no file."""
    if not file.is_file():
        return {}
    with np.load(file, allow_pickle=False) as held:
        return dict(held)


# ---- cost, starts, use


def _list_cost(facts: Facts) -> list[Fact]:
    time = timedelta(seconds=round(facts.seconds))
    speeds = [row["images_per_s"] for row in facts.rows if "images_per_s" in row]
    waited, restarts = share_waited(facts), len(facts.starts) - 1
    advice = "more DATA.NUM_DATALOADER_WORKERS would help" if waited > 0.5 else ""
    memory = facts.status.memory or {}
    return _drop_empty(
        Fact("time", f"{time} of training" if facts.seconds else ""),
        Fact("speed", f"{median(speeds):,.0f} images per second (median)" if speeds else ""),
        Fact("waiting for images", f"{waited:.0%} of a step" if waited else "", advice),
        *(Fact(MEMORY.get(name, name), f"{value:.2f} GB") for name, value in memory.items()),
        Fact("restarts", str(restarts) if restarts > 0 else ""),
    )


def _describe_start(start: Mapping[str, Any]) -> Fact:
    where = f"{start.get('host')}, {start.get('ranks')} x {start.get('device')}"
    code = f"code {start.get('code') or start.get('sslengine')}"
    return Fact(str(start.get("time")), f"from step {start.get('step')} on {where}", code)


def _list_commands(facts: Facts) -> list[Fact]:
    run, place = facts.run, facts.starts[-1].get("folder") if facts.starts else ""
    return _drop_empty(
        Fact("Features in Python", PYTHON.format(folder=str(facts.folder))),
        Fact("Features in a file", f"sslengine embed {run} IMAGES --out features.parquet"),
        Fact("Classes and nearest images", f"sslengine predict {run} IMAGE"),
        Fact("Weights for other programs", f"sslengine export {run} --to timm --out weights"),
        Fact("This run again", facts.command, f"in {place}"),
    )


def _differs(facts: Facts) -> Iterator[tuple[str, str, str]]:
    """Yield the keys that were typed, their values, and those of the recipe where it is known."""
    origins, recipe = origins_in(facts.folder / "config.yaml"), _recipe(facts)
    for key in (key for key, origin in origins.items() if origin == TYPED):
        value, usual = (below(config, key.split("."), "") for config in (facts.config, recipe))
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


def _list_versions(facts: Facts) -> list[Fact]:
    packages = read_json(facts.folder / "environment.json").get("packages", {})
    found = {**packages, **facts.starts[-1]} if facts.starts else packages
    names = ("sslengine", "code", "python", "torch", "torchvision", "timm", "numpy")
    return _drop_empty(*(Fact(name, str(found.get(name) or "")) for name in names))


def _list_checkpoints(folder: Path) -> list[Fact]:
    found = []
    for name in checkpoints_in(folder):
        path = folder / name
        files: Sequence[Path] = [*path.rglob("*")] if path.is_dir() else [path]
        size = sum(each.stat().st_size for each in files if each.is_file())
        found.append(Fact(name, f"{size / 1e6:.1f} MB"))
    return found
