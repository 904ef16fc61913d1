"""At the end of a run: DIR/weights, and the lines of Python that read it.

The first of ORDER that the trunk has. The run is complete: what goes wrong here is a warning.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from sslengine.checkpoint.options import CheckpointOptions
from sslengine.checkpoint.retention import saved
from sslengine.config.sections import read
from sslengine.engines.run import Run
from sslengine.errors import ExportError
from sslengine.export import expect_free
from sslengine.export.folder import checkpoint_of, is_untouched, usage, write
from sslengine.export.formats import Made, find
from sslengine.export.subject import Subject, make_subject
from sslengine.models.weights.read import first_line
from sslengine.trained import Trained

log = logging.getLogger("sslengine")

FOLDER = "weights"
ORDER = ("timm", "torchvision", "state-dict")
_FOR = {"timm": ", for timm, transformers and lightly", "torchvision": ", for torchvision"}
# Importing a library in a new process takes seconds, which `sslengine export` takes.
_WHY = "it was compared in the process of the run alone; sslengine export does it in a new one"


def write_weights(run: Run) -> None:
    if not read(run.config, CheckpointOptions).EXPORT_AT_END:
        return
    place = run.run_dir / FOLDER
    try:
        if _is_of_the_newest(place, run.run_dir / "checkpoints"):
            return
        if not is_untouched(place):
            expect_free(place)
        subject = make_subject(Trained(run.resolved, run.run_dir))
        to, made, refused = _first(subject)
        write(subject, made, place, to, "", _not_here)
    except Exception as error:  # libraries raise many kinds
        log.warning("%s was not written: %s", place, first_line(error))
        return
    run.say(f"  weights     {place}{_FOR.get(to, f', tensors alone: {refused}')}")
    run.say("\n".join(f"    {line}" for line in usage(made, place).splitlines()))


def _is_of_the_newest(place: Path, checkpoints: Path) -> bool:
    """True of a complete run that is started again, unless it was killed before they were there."""
    newest = next(iter(saved(checkpoints)), None)
    return newest is not None and newest.sha256 == checkpoint_of(place)


def _first(subject: Subject) -> tuple[str, Made, str]:
    """The format, the export, and why it is not the first."""
    refused = ""
    for name in ORDER:
        try:
            return name, find(name).prepare(subject, ""), refused
        except ExportError as error:
            refused = refused or first_line(error)
    raise ExportError(refused)


def _not_here(made: Made, folder: Path, subject: Subject) -> list[dict[str, Any]]:
    return [{"not_proved": _WHY}]
