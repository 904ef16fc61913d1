"""What the page of a run shows, as plain data: gather.py fills it, page.py draws it.

The page holds it once more as JSON, so that a program can read every number. Names of files,
classes and metrics are a stranger's: page.py escapes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sslengine.monitor.run_facts import FeatureScore
from sslengine.monitor.verdict import Verdict


@dataclass(frozen=True)
class ClassRow:
    name: str
    images: int
    # Accuracy of the first metric by kind of features, in percent.
    shares: Mapping[str, float]


@dataclass(frozen=True)
class Mistake:
    """A test image whose neighbours agree most on a wrong class."""

    thumb: int
    name: str
    wanted: str
    answer: str
    votes: float  # of the neighbours that give this answer, by weight, in percent


@dataclass(frozen=True)
class Judgement:
    """The scores on one set of images."""

    name: str
    fingerprint: str
    images: Mapping[str, int]  # by split
    metric: str  # accuracy or mAP
    scores: Sequence[FeatureScore]
    chance: float | None = None
    notes: Sequence[str] = ()
    # Further protocols: name -> metric -> value.
    protocols: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # Of the trained features' first metric; empty without one class an image.
    classes: Sequence[ClassRow] = ()
    # A row: the images of a class, by answer; both in the order of `classes`.
    confusion: Sequence[Sequence[int]] = ()
    mistakes: Sequence[Mistake] = ()


@dataclass(frozen=True)
class Thumbs:
    """Small pictures in one sprite, a row of `columns` after the other."""

    sprite: str  # data: URI
    side: int  # pixels of a thumbnail
    columns: int
    names: Sequence[str]  # of the files
    labels: Sequence[int]  # -1: none
    classes: Sequence[str]


@dataclass(frozen=True)
class Map:
    """Positions of the first images of Thumbs; by network: untrained, trained."""

    places: Mapping[str, Sequence[tuple[float, float]]]  # 0 to 1
    nearest: Mapping[str, Sequence[Sequence[int]]]  # ten of each image, the nearest first
    # The share of the ten nearest that have the image's class, in percent: of all, by class.
    same_class: Mapping[str, float]
    by_class: Mapping[str, Sequence[float]]
    clusters: Sequence[int]  # of the trained features
    distances: Sequence[float]  # mean cosine distance to the ten nearest, trained
    queries: Sequence[int]  # twelve images whose neighbours are shown


@dataclass(frozen=True)
class Curve:
    title: str
    caption: str
    epochs: Sequence[float]
    values: Sequence[float]
    percent: bool = False
    # Medians over so many records by default; 1: none.
    smooth: int = 1


@dataclass(frozen=True)
class Health:
    """A collapse metric at the end of each epoch."""

    title: str
    caption: str
    epochs: Sequence[float]
    values: Sequence[float]
    # The healthy range; None: open at this end.
    low: float | None = None
    high: float | None = None
    # What the collapse rules say of it; empty: nothing.
    finding: str = ""


@dataclass(frozen=True)
class Views:
    """What the network gets of an image."""

    name: str
    original: str  # data: URI
    views: Sequence[str]
    # input, mask, reconstruction, attention, patch PCA: what each picture is; empty for views.
    titles: Sequence[str] = ()


@dataclass(frozen=True)
class Fact:
    """A line of a list: what, its value, and a sentence if something is to be done."""

    what: str
    value: str
    advice: str = ""
    # Pictures that show it.
    thumbs: Sequence[int] = ()


@dataclass(frozen=True)
class Content:
    """All that the page of one run shows. An empty part has no section."""

    name: str
    folder: str
    verdict: Verdict
    facts: Sequence[Fact]  # method, network, images, length, machine, time
    curves: Sequence[Curve] = ()
    # Epochs at which the run resumed.
    restarts: Sequence[float] = ()
    health: Sequence[Health] = ()
    findings: Sequence[Fact] = ()
    # Singular values of the features at three moments, the largest is 1.
    spectra: Mapping[str, Sequence[float]] = field(default_factory=dict)
    thumbs: Thumbs | None = None
    map: Map | None = None
    views: Sequence[Views] = ()
    judgements: Sequence[Judgement] = ()  # the newest first
    data: Sequence[Fact] = ()
    cost: Sequence[Fact] = ()
    starts: Sequence[Fact] = ()
    commands: Sequence[Fact] = ()
    # Keys that differ from the recipe: value, the recipe's value; those of the command first.
    differs: Sequence[tuple[str, str, str]] = ()
    versions: Sequence[Fact] = ()
    checkpoints: Sequence[Fact] = ()
    # The command that adds the map; empty where it is there or cannot be made.
    map_command: str = ""


@dataclass(frozen=True)
class Row:
    """One run of a comparison."""

    name: str
    status: str
    differs: Mapping[str, str]  # only the keys in which the runs differ
    scores: Sequence[FeatureScore]  # of the trained features, with gain over the untrained ones
    metrics: Mapping[str, float]  # last loss, RankMe
    length: str
    seconds: float
    findings: Sequence[str] = ()
    curves: Sequence[Curve] = ()


@dataclass(frozen=True)
class Comparison:
    title: str
    sentence: str
    detail: str
    command: str
    rows: Sequence[Row]
    baselines: Sequence[FeatureScore]  # untrained, raw pixels
    # By metric: row minus column with its interval, both over `names`; None on the diagonal.
    names: Sequence[str]
    differences: Mapping[str, Sequence[Sequence[tuple[float, float, float] | None]]]
    # The key with several numbers that a sweep went over; empty: none.
    swept: str = ""
    # By metric: the best run, and whether the difference is larger than the interval.
    best: Sequence[tuple[str, str, str]] = ()
    notes: Sequence[str] = ()
