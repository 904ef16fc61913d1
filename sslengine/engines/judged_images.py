"""What protocols on further images get, and how they compute features of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sslengine.config.sections import read, replaced
from sslengine.data.options import DataOptions
from sslengine.engines.run import Run
from sslengine.engines.scoring import Score, Sets
from sslengine.engines.stored import Network, StoredSplit, store_split
from sslengine.errors import DataError
from sslengine.evaluate.answers import expect_probe
from sslengine.evaluate.linear import Fitted
from sslengine.evaluate.options import EvaluateOptions, LinearProbeOptions
from sslengine.evaluate.outcome import Outcome

# By network and layer.
Found = dict[tuple[str, str], Outcome]
FIRST = "the first"  # layer
# Where TEST is other images: no share of them, nor a list, is taken.
ALL_OF_THEM = {
    "DATA.HOLD_OUT.SHARE": 0.0, "DATA.TEST.DATA_LIMIT_SAMPLING.SHARE": 0.0,
    "DATA.TEST.DATA_LIMIT_SAMPLING.LIST": "",
}  # fmt: skip


@dataclass(frozen=True)
class Judged:
    run: Run
    networks: Sequence[Network]
    sets: Sequence[Sets]
    splits: Mapping[str, StoredSplit]
    folder: Path
    EVALUATE: EvaluateOptions
    probe: LinearProbeOptions
    weights: Path | None
    # Of `sets`, by the labels.
    scores: Sequence[Score] = ()

    @property
    def test(self) -> str:
        """The split whose images are judged."""
        return "TEST" if "TEST" in self.splits else "TRAIN"

    @property
    def transforms(self) -> list[dict[str, Any]]:
        data = read(self.run.config, DataOptions)
        return [dict(each) for each in getattr(data, self.test).TRANSFORMS]

    def before_tensor(self, *entries: dict[str, Any], all_before: bool = False) -> list[Any]:
        """The judged view with further transforms; all_before: in place of those before."""
        names = [each["name"] for each in self.transforms]
        if "ToTensor" not in names:
            raise DataError(
                f"config.DATA.{self.test}.TRANSFORMS: expected ToTensor among them, which other "
                f"transforms can precede."
            )
        place = names.index("ToTensor")
        kept = [] if all_before else self.transforms[:place]
        return [*kept, *entries, *self.transforms[place:]]

    @property
    def side(self) -> int:
        """The side of the judged images, in pixels."""
        (image,) = self.splits[self.test].dataset[0, 0]["data"]
        return int(min(image.shape[-2:]))

    def stored(
        self, split: str, changes: Mapping[str, Any], networks: Sequence[Network] = ()
    ) -> StoredSplit:
        """The features of other images. changes: of the config. Collective."""
        dtype = self.EVALUATE.DTYPE
        return store_split(
            self.run_with(changes), split, networks or self.networks, self.folder, (), dtype
        )

    def run_with(self, changes: Mapping[str, Any]) -> Run:
        config = replaced(self.run.config, changes)
        return replace(self.run, resolved=replace(self.run.resolved, config=config))


# ---- the linear probe, for protocols that score it on further images

Key = tuple[str, str]  # network and layer


@dataclass(frozen=True)
class Probes:
    """The linear probe of each network and layer."""

    fitted: Mapping[Key, Fitted]
    # What is reported of each, without metrics.
    about: Mapping[Key, Outcome]
    # Why some features have none.
    without: Found


def find_probes(judged: Judged) -> Probes:
    """Take those that were scored; DataError if no features have one."""
    probes: dict[Key, Fitted] = {}
    about: dict[Key, Outcome] = {}
    without: Found = {}
    for each in judged.scores:
        key = each.features, each.layer
        try:
            found, probes[key] = expect_probe(each.probe)
        except DataError as reason:
            without[key] = Outcome({}, (str(reason),))
            why = reason
            continue
        details = {"clean": found.test_accuracy, **found.chosen, "layer": each.layer}
        about[key] = Outcome({}, found.notes, details)
    if not probes:
        raise why
    return Probes(probes, about, without)
