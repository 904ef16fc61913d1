"""Say whether a run has collapsed, how one sees it, and what to change.

    for each in find_signs(ends, config):     ends: the metrics at the end of each train phase
        print(each)

A gauge is a metric with the values between which it is healthy, and the sign of what is outside of
them. It looks at the last phase and, where it needs them, at the earlier ones. Metrics that are
absent say nothing. ADVICE has a sentence for each cause.

Targets are those of images and, where a method has them, of patches. Metrics are of one rank's
batch: of fewer than FEWEST_ROWS rows nothing is said of how many prototypes or dimensions they
fill.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sslengine.registry import component_key

Metrics = Mapping[str, float]


class Targets(NamedTuple):
    """The names of the metrics of one kind of targets, and of the options that may hold K."""

    of: str
    entropy: str
    used: str
    sizes: Sequence[str]  # the first that a method has, and that is above 0


IMAGES = Targets("", "loss.teacher_entropy", "loss.prototypes_used",
                 ("num_prototypes", "num_clusters", "output_dim"))  # fmt: skip
PATCHES = Targets("patch ", "loss.patch_teacher_entropy", "loss.patch_prototypes_used",
                  ("patch_output_dim", "output_dim"))  # fmt: skip

# The metrics that are read.
PATCH_LOSS, KOLEO, INFORMATION = "loss.patches", "loss.koleo", "loss.image_information"
TRUNK_RANK, TRUNK_ROWS = "trunk_rank", "trunk_rows"
START_RANK, START_ROWS = "start_rank", "start_rows"  # in the first step, of weights that were given
PROJECTION_RANK, PROJECTION_STD = "projection_rank", "projection_std"
PATCH_SPREAD, INPUT_STD = "patch_spread", "input_std"
LOSS_FINITE, LOSS_SCALE = "loss_finite", "loss_scale"
READ = (IMAGES.entropy, IMAGES.used, PATCHES.entropy, PATCHES.used, PATCH_LOSS, KOLEO, INFORMATION,
        TRUNK_RANK, TRUNK_ROWS, START_RANK, START_ROWS, PROJECTION_RANK, PATCH_SPREAD, INPUT_STD,
        LOSS_FINITE, LOSS_SCALE, PROJECTION_STD)  # fmt: skip
# Singular values of the trunk's features, in the folder of a run; and the moments.
SPECTRA = "spectra.jsonl"
START, MIDDLE, END = "start", "middle", "end"

UNIFORM = 0.99  # of ln K
SPREAD = 0.5  # of ln K: the least entropy of N equal shares of K > N prototypes is ln(K / N)
SAYS_NOTHING = 0.02  # nats
LEFT = 0.25  # of the largest value so far
ALIKE_RANK, ALIKE_SPREAD, ALIKE_INPUT = 1.5, 0.05, 1e-6
FEWEST_USED = 2.0  # prototypes
ONE_LINE = 2.0  # RankMe of projections that are hardly more than a line
FEWEST_ROWS = 8  # of the trunk, to judge how many dimensions or prototypes they fill
COINCIDE = 14.0  # KoLeo of two views: a mean distance of exp(-7), 1e-3

# What to change, by the cause; docs/methods.md names the options to suspect first.
DIVERGED, NOT_FINITE = "diverged", "not finite"
COPIES, FROM_WEIGHTS, NO_NEIGHBOUR = "copies", "alike from the start", "no neighbour"
_RATE = "lower config.OPTIMIZER.param_schedulers.lr (--lr), to a third say"
_TEACHER = "raise the momentum of a teacher to 0.99"
_BATCH = "raise config.DATA.TRAIN.BATCHSIZE_PER_REPLICA"
_ALIKE = f"The learning rate may be too high: {_RATE}; or {_TEACHER}."
_UNUSED = (
    f"Does the centre move (ema_center 0.9)? Balance targets by Sinkhorn, {_TEACHER}, or {_RATE}."
)
ADVICE: Mapping[str, str] = {
    DIVERGED: f"The learning rate may be too high: {_RATE}.",
    "uniform targets": f"The targets are too flat: lower their temperature, or {_TEACHER}.",
    "one-hot targets": f"The targets are too sharp: raise their temperature, or {_RATE}.",
    "more prototypes than rows": f"Each has an equal share of the rows: take fewer, or {_BATCH}.",
    "one prototype": _UNUSED,
    "fewer prototypes": _UNUSED,
    "no hidden patches": "Hide more in config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS (shares, "
                         "masked_views, pred_ratio_mean), or take larger views.",
    "targets without images": "Clusters may have become positions: set positionwise to true, "
                              f"{_TEACHER}, or {_RATE}.",
    "equal images": _ALIKE,
    COPIES: "Look at the images of config.DATA.TRAIN (`sslengine doctor FOLDER` counts copies) and "
            "at config.DATA.TRAIN.TRANSFORMS.",
    FROM_WEIGHTS: "So it was in the first step: config.MODEL.WEIGHTS_INIT.PARAMS_FILE gives all "
                  "images the same features. Take other weights; or do config.DATA.TRAIN."
                  "TRANSFORMS end in another range than theirs?",
    "fewer dimensions": _ALIKE,
    "equal projections": _ALIKE,
    "equal patches": _ALIKE,
    "KoLeo": "Nearest images have the same features: remove copies of an image, if there are any.",
    NO_NEIGHBOUR: f"It needs two images per rank: {_BATCH}.",
    NOT_FINITE: f"Set config.MACHINE.PRECISION=bf16 if it is fp16, {_RATE}, or raise temperatures.",
}  # fmt: skip


class Sign(NamedTuple):
    what: str
    value: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}: {self.value}. {self.advice}"


class Gauge(NamedTuple):
    """A metric of health: between which values it is healthy, and what others show."""

    metric: str
    title: str
    caption: str
    low: float | None = None
    high: float | None = None
    below: Sign | None = None
    above: Sign | None = None


def find_signs(ends: Sequence[Metrics], config: Mapping[str, Any]) -> Iterator[Sign]:
    """Yield what the last phase of a run shows; config: of the run, or its stored form."""
    if ends and ends[-1].get(INPUT_STD, math.nan) < ALIKE_INPUT:  # the rest follows from it
        yield _sign("equal images", "the images of a batch are copies of one", COPIES)
    elif ends:
        run = Ends(ends, config)
        for each in _gauges(run):
            value = run.get(each.metric)
            if each.below is not None and each.low is not None and value < each.low:
                yield each.below
            if each.above is not None and each.high is not None and value > each.high:
                yield each.above
        yield from _find_others(run)


def healthy_ranges(ends: Sequence[Metrics], config: Mapping[str, Any]) -> list[Gauge]:
    """Return the gauges of the metrics that the last train phase has."""
    return [each for each in _gauges(Ends(ends, config)) if each.metric in ends[-1]] if ends else []


def ends_of_phases(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest value of each metric at the end of each train phase, or of a failed run.

    rows: of metrics.jsonl, of all kinds.
    """
    latest: dict[str, Any] = {}
    ends = []
    for row in rows:
        if row.get("split") == "train":
            latest |= {name: row[name] for name in READ if name in row}
            if not math.isfinite(row.get("loss", 0.0)):
                latest[LOSS_FINITE] = 0.0
            if row["kind"] in ("phase", "exception"):
                ends.append(dict(latest))
    return ends


class Ends:
    """What gauges read: the ends of a run's train phases, and how its targets are made."""

    def __init__(self, ends: Sequence[Metrics], config: Mapping[str, Any]) -> None:
        self.all, self.config = ends, config
        method = component_key(str(config["LOSS"]["name"]))
        self.options: Mapping[str, Any] = config["LOSS"].get(method) or {}
        # Rows of the trunk's features; older versions do not say it, and count as many.
        self.rows = self.get(TRUNK_ROWS, math.inf)

    def get(self, metric: str, absent: float = math.nan) -> float:
        """Return a metric of the last phase; comparisons with NaN are false."""
        return self.all[-1].get(metric, absent)

    def most(self, metric: str) -> float:
        """Return the largest so far, of no more rows than the last ones."""
        return max(each.get(metric, 0.0) for each in self.all
                   if each.get(TRUNK_ROWS, math.inf) <= self.rows)  # fmt: skip

    @property
    def start_rank(self) -> float:
        """Return RankMe of the weights that the run started from, if it is of no more rows."""
        fits = self.get(START_ROWS, math.inf) <= self.rows
        return self.get(START_RANK, 0.0) if fits else 0.0

    def option(self, name: str) -> float:
        """Return a number among the method's options; NaN if it is none."""
        value = self.options.get(name)
        return float(value) if isinstance(value, (int, float)) else math.nan

    def count_scores(self, targets: Targets = IMAGES) -> float:
        """Return K: how many scores a target has."""
        return next((size for size in map(self.option, targets.sizes) if size > 0), math.nan)

    def is_uniform(self) -> bool:
        return self.get(IMAGES.entropy) > UNIFORM * math.log(self.count_scores())

    @property
    def is_finite(self) -> bool:
        return self.get(LOSS_FINITE, 1.0) == 1.0

    def count_assigned(self) -> float:
        """Count the rows that Sinkhorn assigns to prototypes together; NaN if it does not."""
        assigns = self.options.get("targets", "sinkhorn") == "sinkhorn"
        of_images = self.options.get("positionwise", True)  # otherwise of all patches
        if not (assigns and of_images and self.option("sinkhorn_iterations") > 0):
            return math.nan
        ranks = self.config["DISTRIBUTED"]
        images = self.config["DATA"]["TRAIN"]["BATCHSIZE_PER_REPLICA"]
        views = 1 if {"positionwise", "sharpen"} & {*self.options} else 2  # with a target
        return float(views * images * ranks["NUM_NODES"] * ranks["NUM_PROC_PER_NODE"])


def _sign(what: str, value: str, cause: str = "") -> Sign:
    return Sign(what, value, ADVICE[cause or what.replace("patch ", "")])


def _gauges(run: Ends) -> Iterator[Gauge]:
    counts = run.rows >= FEWEST_ROWS
    quarter = f"Below {LEFT:.0%} of the most so far it has lost them."
    for targets in (IMAGES, PATCHES):
        of, scores = targets.of, run.count_scores(targets)
        entropy, used, most = (
            run.get(targets.entropy),
            run.get(targets.used),
            run.most(targets.used),
        )
        told, flat = f"the teacher's entropy is {abs(entropy):.3f}", UNIFORM * math.log(scores)
        yield Gauge(
            targets.entropy, f"Entropy of the {of}targets",
            "At ln K all prototypes are alike to the teacher, at 0 each target is one.",
            SAYS_NOTHING, None if math.isnan(flat) else flat,
            _sign(f"one-hot {of}targets", told) if used >= FEWEST_USED else None,
            _sign(f"uniform {of}targets", f"{told}, ln K is {math.log(scores):.3f}"),
        )  # fmt: skip
        told = f"{used:.1f} of {scores:g} prototypes are in use"
        lost = _sign(f"fewer {of}prototypes", f"{told}, after {most:.1f}")
        lost = _sign(f"one {of}prototype", told) if used < FEWEST_USED else lost
        has_targets = targets is IMAGES or run.get(PATCH_LOSS) != 0.0
        yield Gauge(
            targets.used, f"Prototypes in use{', patches' if of else ''}", quarter,
            max(FEWEST_USED, LEFT * most), below=lost if counts and has_targets else None,
        )  # fmt: skip
    known = f"a target says {run.get(INFORMATION):.3f} nats of the image"
    yield Gauge(
        INFORMATION, "Information of the targets", "Nats, about their images.", SAYS_NOTHING,
        below=None if run.is_uniform() else _sign("targets without images", known),
    )  # fmt: skip
    rank, start = run.get(TRUNK_RANK), run.start_rank
    most = max(run.most(TRUNK_RANK), start)
    few = _sign("fewer dimensions", f"RankMe is {rank:.1f}, after {most:.1f}")
    if rank < ALIKE_RANK:
        cause = FROM_WEIGHTS if 0.0 < start < ALIKE_RANK else ""
        few = _sign("equal images", f"RankMe of the trunk is {rank:.2f}", cause)
    yield Gauge(
        TRUNK_RANK, "Dimensions in use, trunk", f"RankMe of one batch. {quarter}",
        max(ALIKE_RANK, LEFT * most), below=few if counts else None,
    )  # fmt: skip
    told = f"RankMe of the projections is {run.get(PROJECTION_RANK):.2f}"
    yield Gauge(
        PROJECTION_RANK, "Dimensions in use, projection", "Near 1 all are alike.", ONE_LINE,
        below=_sign("equal projections", told) if counts and not rank < ALIKE_RANK else None,
    )  # fmt: skip
    yield Gauge(PROJECTION_STD, "Spread of the projections", "0: all are alike.", 0.0)
    told = f"the patches of an image differ by {run.get(PATCH_SPREAD):.1e} of their length"
    yield Gauge(PATCH_SPREAD, "Spread of the patches", "0: all are alike.", ALIKE_SPREAD,
                below=_sign("equal patches", told))  # fmt: skip
    yield Gauge(INPUT_STD, "Spread of the input", "0: all images are copies of one.", ALIKE_INPUT)
    yield Gauge(KOLEO, "KoLeo", "Above it nearest images have the same features.", high=COINCIDE,
                above=_sign("KoLeo", f"it is {run.get(KOLEO):.1f}"))  # fmt: skip
    told = f"the loss scale is down at {run.get(LOSS_SCALE):.1e}"
    yield Gauge(LOSS_SCALE, "Loss scale", "fp16: it falls with every overflow.", 1.0,
                below=_sign(NOT_FINITE, told) if run.is_finite else None)  # fmt: skip


def _find_others(run: Ends) -> Iterator[Sign]:
    """Yield what no range of one metric shows."""
    entropy, count = run.get(IMAGES.entropy), run.count_scores()
    most = SPREAD * math.log(count)
    if entropy >= most and not run.is_uniform() and math.log(count / run.count_assigned()) > most:
        value = f"a target is spread over {math.exp(entropy):.0f} of {count:g}"
        yield _sign("more prototypes than rows", value)
    # A cross entropy is never 0, but where it has no terms.
    if run.get(PATCH_LOSS) == 0.0 and run.option("patch_weight") > 0.0:
        yield _sign("no hidden patches", f"{PATCH_LOSS} is 0")
    if run.get(KOLEO) == 0.0:
        yield _sign("KoLeo", "no image has a neighbour", NO_NEIGHBOUR)
    if not run.is_finite:
        yield _sign(NOT_FINITE, "the loss is not finite")
