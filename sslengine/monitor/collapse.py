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

# The metrics that are read. start_rank is that of the first step, of weights that were given.
READ = (
    "loss.teacher_entropy", "loss.prototypes_used", "loss.patch_teacher_entropy",
    "loss.patch_prototypes_used", "loss.patches", "loss.koleo", "loss.image_information",
    "trunk_rank", "trunk_rows", "start_rank", "start_rows", "projection_rank", "projection_std",
    "patch_spread", "input_std", "loss_finite", "loss_scale",
)  # fmt: skip
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
NOT_FINITE = "not finite"
_RATE = "lower config.OPTIMIZER.param_schedulers.lr (--lr), to a third say"
_TEACHER = "raise the momentum of a teacher to 0.99"
_BATCH = "raise config.DATA.TRAIN.BATCHSIZE_PER_REPLICA"
_ALIKE = f"The learning rate may be too high: {_RATE}; or {_TEACHER}."
_UNUSED = (
    f"Does the centre move (ema_center 0.9)? Balance targets by Sinkhorn, {_TEACHER}, or {_RATE}."
)
ADVICE: Mapping[str, str] = {
    "diverged": f"The learning rate may be too high: {_RATE}.",
    "uniform targets": f"The targets are too flat: lower their temperature, or {_TEACHER}.",
    "one-hot targets": f"The targets are too sharp: raise their temperature, or {_RATE}.",
    "more prototypes than rows": f"Each has an equal share of the rows: take fewer, or {_BATCH}.",
    "one prototype": _UNUSED,
    "fewer prototypes": _UNUSED,
    "no hidden patches": "Hide more in config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS, or take larger "
                         "views.",
    "targets without images": "Clusters may have become positions: set positionwise to true, "
                              f"{_TEACHER}, or {_RATE}.",
    "equal images": _ALIKE,
    "copies": "Look at the images of config.DATA.TRAIN (`sslengine doctor FOLDER` counts copies) "
              "and at config.DATA.TRAIN.TRANSFORMS.",
    "from weights": "config.MODEL.WEIGHTS_INIT.PARAMS_FILE gave all images the same features in "
                    "the first step: take other weights, or the TRANSFORMS that they need.",
    "fewer dimensions": _ALIKE,
    "equal projections": _ALIKE,
    "equal patches": _ALIKE,
    "KoLeo": "Nearest images have the same features: remove copies of an image, if there are any.",
    "no neighbour": f"It needs two images per rank: {_BATCH}.",
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
    below: Sign | None = None
    high: float | None = None
    above: Sign | None = None


def find_signs(ends: Sequence[Metrics], config: Mapping[str, Any]) -> Iterator[Sign]:
    """Yield what the last phase of a run shows; config: of the run, or its stored form."""
    if ends and ends[-1].get("input_std", math.nan) < ALIKE_INPUT:  # the rest follows from it
        yield _sign("equal images", "the images of a batch are copies of one", "copies")
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
                latest["loss_finite"] = 0.0
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
        self.rows = self.get("trunk_rows", math.inf)
        self.is_finite = self.get("loss_finite", 1.0) == 1.0
        self.is_uniform = self.get("loss.teacher_entropy") > UNIFORM * math.log(self.count_scores())

    def get(self, metric: str, absent: float = math.nan) -> float:
        """Return a metric of the last phase; comparisons with NaN are false."""
        return self.all[-1].get(metric, absent)

    def most(self, metric: str) -> float:
        """Return the largest so far, of no more rows than the last ones."""
        return max(each.get(metric, 0.0) for each in self.all
                   if each.get("trunk_rows", math.inf) <= self.rows)  # fmt: skip

    def count_scores(self, *of_patches: str) -> float:
        """Return K, how many scores a target has: the first such option of the method above 0."""
        names = of_patches or ("num_prototypes", "num_clusters")
        sizes = (self.options.get(name) for name in (*names, "output_dim"))
        found = (float(each) for each in sizes if isinstance(each, (int, float)) and each > 0)
        return next(found, math.nan)

    def count_assigned(self) -> float:
        """Count the rows that Sinkhorn assigns to prototypes together; NaN if it does not."""
        options = self.options
        assigns = options.get("targets", "sinkhorn") == "sinkhorn"
        of_images = options.get("positionwise", True)  # otherwise of all patches
        if not (assigns and of_images and options.get("sinkhorn_iterations", 0) > 0):
            return math.nan
        ranks = self.config["DISTRIBUTED"]
        images = self.config["DATA"]["TRAIN"]["BATCHSIZE_PER_REPLICA"]
        views = 1 if {"positionwise", "sharpen"} & {*options} else 2  # with a target
        return float(views * images * ranks["NUM_NODES"] * ranks["NUM_PROC_PER_NODE"])


def _sign(what: str, value: str, cause: str = "") -> Sign:
    return Sign(what, value, ADVICE[cause or what.replace("patch ", "")])


def _gauges(run: Ends) -> Iterator[Gauge]:
    many = run.rows >= FEWEST_ROWS
    yield from _gauges_of_targets(run, "", "loss.", run.count_scores(), many)
    of_patches = run.count_scores("patch_output_dim")
    hidden = many and run.get("loss.patches") != 0.0
    yield from _gauges_of_targets(run, "patch ", "loss.patch_", of_patches, hidden)
    known = f"a target says {run.get('loss.image_information'):.3f} nats of the image"
    yield Gauge(
        "loss.image_information", "Information of the targets", "Nats, about their images.",
        SAYS_NOTHING, None if run.is_uniform else _sign("targets without images", known),
    )  # fmt: skip
    rank = run.get("trunk_rank")
    start = run.get("start_rank", 0.0) if run.get("start_rows", math.inf) <= run.rows else 0.0
    most = max(run.most("trunk_rank"), start)
    few = _sign("fewer dimensions", f"RankMe is {rank:.1f}, after {most:.1f}")
    if rank < ALIKE_RANK:
        cause = "from weights" if 0.0 < start < ALIKE_RANK else ""
        few = _sign("equal images", f"RankMe of the trunk is {rank:.2f}", cause)
    yield Gauge(
        "trunk_rank", "Dimensions in use, trunk", f"RankMe of one batch. {_QUARTER}",
        max(ALIKE_RANK, LEFT * most), few if many else None,
    )  # fmt: skip
    told = f"RankMe of the projections is {run.get('projection_rank'):.2f}"
    yield Gauge(
        "projection_rank", "Dimensions in use, projection", "Near 1 all are alike.", ONE_LINE,
        _sign("equal projections", told) if many and not rank < ALIKE_RANK else None,
    )  # fmt: skip
    yield Gauge("projection_std", "Spread of the projections", "0: all are alike.", 0.0)
    told = f"the patches of an image differ by {run.get('patch_spread'):.1e} of their length"
    yield Gauge("patch_spread", "Spread of the patches", "0: all are alike.", ALIKE_SPREAD,
                _sign("equal patches", told))  # fmt: skip
    yield Gauge("input_std", "Spread of the input", "0: all images are copies of one.", ALIKE_INPUT)
    told = f"it is {run.get('loss.koleo'):.1f}"
    yield Gauge("loss.koleo", "KoLeo", "Above it nearest images have the same features.",
                high=COINCIDE, above=_sign("KoLeo", told))  # fmt: skip
    told = f"the loss scale is down at {run.get('loss_scale'):.1e}"
    yield Gauge("loss_scale", "Loss scale", "fp16: it falls with every overflow.", 1.0,
                _sign(NOT_FINITE, told) if run.is_finite else None)  # fmt: skip


_QUARTER = f"Below {LEFT:.0%} of the most so far it has lost them."


def _gauges_of_targets(
    run: Ends, of: str, metrics: str, scores: float, counts: bool
) -> Iterator[Gauge]:
    """Yield entropy and use of prototypes. of: "patch " or nothing; counts: are rows enough?"""
    entropy, used = run.get(f"{metrics}teacher_entropy"), run.get(f"{metrics}prototypes_used")
    most, flat = run.most(f"{metrics}prototypes_used"), UNIFORM * math.log(scores)
    told = f"the teacher's entropy is {abs(entropy):.3f}"
    yield Gauge(
        f"{metrics}teacher_entropy", f"Entropy of the {of}targets",
        "At ln K all prototypes are alike to the teacher, at 0 each target is one.",
        SAYS_NOTHING, _sign(f"one-hot {of}targets", told) if used >= FEWEST_USED else None,
        None if math.isnan(flat) else flat,
        _sign(f"uniform {of}targets", f"{told}, ln K is {math.log(scores):.3f}"),
    )  # fmt: skip
    told = f"{used:.1f} of {scores:g} prototypes are in use"
    lost = _sign(f"fewer {of}prototypes", f"{told}, after {most:.1f}")
    lost = _sign(f"one {of}prototype", told) if used < FEWEST_USED else lost
    yield Gauge(
        f"{metrics}prototypes_used", f"Prototypes in use{', patches' if of else ''}", _QUARTER,
        max(FEWEST_USED, LEFT * most), lost if counts else None,
    )  # fmt: skip


def _find_others(run: Ends) -> Iterator[Sign]:
    """Yield what no range of one metric shows."""
    entropy, count = run.get("loss.teacher_entropy"), run.count_scores()
    most = SPREAD * math.log(count)
    if entropy >= most and not run.is_uniform and math.log(count / run.count_assigned()) > most:
        value = f"a target is spread over {math.exp(entropy):.0f} of {count:g}"
        yield _sign("more prototypes than rows", value)
    # A cross entropy is never 0, but where it has no terms.
    if run.get("loss.patches") == 0.0 and (run.options.get("patch_weight") or 0.0) > 0.0:
        yield _sign("no hidden patches", "loss.patches is 0")
    if run.get("loss.koleo") == 0.0:
        yield _sign("KoLeo", "no image has a neighbour", "no neighbour")
    if not run.is_finite:
        yield _sign(NOT_FINITE, "the loss is not finite")
