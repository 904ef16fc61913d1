"""Promises of writers and of evaluators of features."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.monitor.build import RunPlace, build_writers
from sslengine.monitor.writers import Record, Writer
from sslengine.registry import import_dotted
from sslengine.testing.promises import expect, names, promise
from sslengine.testing.state import differences, flat
from sslengine.testing.suite import Suite, Trial

# The records of a run of four steps, which saves a checkpoint after the second.
RECORDS = tuple(
    Record("step", number, 0, "train", {"loss": 0.7310625 / number, "top": {"1": 50.0 + number}})
    for number in (1, 2, 3, 4)
)
SAVED_AT = 2


class WriterSuite(Suite):
    """arguments: as in config.HOOKS.WRITERS.

    read: a function that returns the losses written in the run's folder, in order. Without it,
        the numbers in the folder's files that equal the losses are read.
    """

    kind = "writer"

    def __init__(self, trial: Trial, read: Callable[[Path], list[float]] | None = None) -> None:
        super().__init__(trial)
        self.entry, self._read = {"name": self.component, **self.arguments}, read

    def open(self, folder: str, iteration: int = 0) -> Writer:
        place = self.folder / folder
        place.mkdir(exist_ok=True)
        (writer,) = build_writers([self.entry], RunPlace(place, iteration))
        return writer

    def written(self, folder: str) -> list[float]:
        """The losses in the files of the run, in order."""
        if self._read is not None:
            return self._read(self.folder / folder)
        files = [path for path in sorted((self.folder / folder).iterdir()) if path.is_file()]
        text = "\n".join(path.read_text(errors="replace") for path in files)
        numbers = map(float, re.findall(r"(?<![\w.])\d+\.\d+(?:e-?\d+)?", text))
        wanted = [record.values["loss"] for record in RECORDS]
        found = (next((w for w in wanted if _near([each], [w])), None) for each in numbers)
        return [each for each in found if each is not None]

    @cached_property
    def whole(self) -> list[float]:
        writer = self.open("whole")
        for record in RECORDS:
            writer.write(record)
        writer.close()
        return self.written("whole")

    @promise()
    def writes_every_record_once(self) -> None:
        """Records are written in order, and all of them when the writer is closed."""
        wanted = [record.values["loss"] for record in RECORDS]
        expect(
            _near(self.whole, wanted),
            f"{self.name}: the losses {wanted} are written as {self.whole}",
        )

    @promise()
    def resumes_without_gaps(self) -> None:
        """After a kill, and a resume from an earlier checkpoint, each record is written."""
        writer = self.open("first")
        for record in RECORDS[: SAVED_AT + 1]:
            writer.write(record)
            writer.unsynced()  # as a checkpoint does
        # After a kill only the files remain.
        shutil.copytree(self.folder / "first", self.folder / "killed")
        again = self.open("killed", SAVED_AT)
        for record in RECORDS[SAVED_AT:]:  # one of them for the second time
            again.write(record)
        again.close()
        writer.close()
        kept = list(dict.fromkeys(self.written("killed")))
        expect(
            _near(kept, self.whole),
            f"{self.name}: after a kill and a resume the losses are {kept}; without a kill they "
            f"are {self.whole}. Open its files to append.",
        )

    @promise()
    def accepts_nan_and_text(self) -> None:
        """Records may hold NaN, text and None; none of these ends the run."""
        writer = self.open("odd")
        values = {"loss": math.nan, "norm": math.inf, "text": "words, and more", "none": None}
        writer.write(Record("phase", 1, 0, "test", values))
        writer.write(Record("end", 1, 0, "train", {}))
        writer.close()


def _near(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(
        math.isclose(a, b, rel_tol=1e-3) for a, b in zip(one, other, strict=True)
    )


class EvaluatorSuite(Suite):
    """A function (training features, training labels, test features, test labels) -> numbers, or
    one of features only. arguments: its keyword arguments.
    """

    kind = "evaluator"
    ROWS, WIDTH, CLASSES = 60, 5, 3

    def __init__(self, trial: Trial, alone: bool = False) -> None:
        """alone: the function takes features only."""
        super().__init__(trial)
        self.alone, self.evaluate = alone, import_dotted(self.component)

    @cached_property
    def given(self) -> list[Tensor]:
        """Features of classes around different centres, with some overlap."""
        draw = torch.Generator().manual_seed(0)
        centres = torch.randn(self.CLASSES, self.WIDTH, generator=draw)
        made: list[Tensor] = []
        for _ in ("train", "test"):
            labels = torch.randint(self.CLASSES, (self.ROWS,), generator=draw)
            noise = torch.randn(self.ROWS, self.WIDTH, generator=draw)
            made += [centres[labels] + 0.7 * noise, labels]
        return made[:1] if self.alone else made

    def values(self, given: Sequence[Tensor]) -> dict[str, float]:
        found = self.evaluate(*given, **self.arguments)
        if is_dataclass(found):  # what is not compared is no answer
            found = {each.name: getattr(found, each.name) for each in fields(found) if each.compare}
        else:
            found = {"value": found}
        numbers = {key: each for key, each in flat(found).items() if not isinstance(each, str)}
        return {key: float(each) for key, each in numbers.items()}

    @promise()
    def is_deterministic(self) -> None:
        """Its numbers are finite and deterministic."""
        first, again = self.values(self.given), self.values(self.given)
        wrong = [key for key, each in first.items() if not math.isfinite(each)]
        expect(bool(first) and not wrong, f"{self.name}: not finite: {names(wrong)}")
        differs = differences(first, again)
        expect(not differs, f"{self.name}: in a second call {names(differs)} differs")

    @promise()
    def does_not_change_the_features(self) -> None:
        """It does not change the features: other evaluators get the same tensors."""
        before = [each.clone() for each in self.given]
        self.values(self.given)
        kept = all(torch.equal(*pair) for pair in zip(before, self.given, strict=True))
        expect(kept, f"{self.name}: it has changed the features")

    @promise()
    def does_not_depend_on_the_order(self) -> None:
        """The order of the test images has no effect: it depends on ranks and loaders."""
        order = torch.randperm(self.ROWS, generator=torch.Generator().manual_seed(1))
        shuffled = [*self.given[:-2], *(each[order] for each in self.given[-2:])]
        first, other = self.values(self.given), self.values(shuffled)
        far = [key for key in first if not math.isclose(first[key], other[key], rel_tol=1e-4)]
        expect(not far, f"{self.name}: for images in another order {names(far)} differs")

    @promise(always=False)
    def ranks_good_features_above_noise(self) -> None:
        """Its number is higher for separated classes than for noise."""
        train, labels, test, test_labels = self.given
        draw = torch.Generator().manual_seed(2)
        noise = [torch.randn(each.shape, generator=draw) for each in (train, test)]
        good = self.values(self.given)
        bad = self.values([noise[0], labels, noise[1], test_labels])
        key = next(iter(good))
        expect(
            good[key] > bad[key], f"{self.name}: {key} is {good[key]:g}, and {bad[key]:g} for noise"
        )
