"""Has a run collapsed, why, and which key of its config to change?

    for each in find_signs(ends, config):     ends: the metrics at the end of each train phase
        print(each)

Each rule is a function of this file that looks at the last phase and, where it needs them, at the
earlier ones. Metrics that are absent say nothing. remedies.py names the key to change.

    uniform             the teacher's entropy is ln K: its targets say nothing
    one-hot             it is 0: each target is one prototype and knows no likeness
    more prototypes     than Sinkhorn can fill: each target is spread over many of them
    one prototype       all targets are one prototype
    fewer prototypes    less than a quarter of the prototypes that were in use
    without images      the targets of patches depend on their positions alone
    equal images        they are copies of one, or the trunk gives all the same features
    no hidden patches   so none is predicted
    equal patches       it gives all patches of an image the same features
    equal projections   RankMe of the projections is hardly that of more than one direction
    fewer dimensions    RankMe of the trunk is below a quarter of what it was, or of what the
                        weights gave that the run started from
    KoLeo               nearest neighbours coincide, or there are none
    not finite          the loss is NaN or infinite, or every step overflows in fp16

The rules of uniform and one-hot targets and of one or fewer prototypes look at the targets of
images and, where a method has them, at those of patches. Metrics are of one rank's batch: of fewer
than FEWEST_ROWS rows nothing is said of how many prototypes or dimensions they fill.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sslengine.monitor.remedies import IMAGES, PATCHES, SPREAD, UNIFORM, Remedies

Metrics = Mapping[str, float]

# The metrics that the rules read.
ENTROPY, USED = IMAGES.entropy, IMAGES.used
PATCH_ENTROPY, PATCH_USED = PATCHES.entropy, PATCHES.used
PATCH_LOSS = "loss.patches"
KOLEO, INFORMATION = "loss.koleo", "loss.image_information"
TRUNK_RANK, TRUNK_ROWS = "trunk_rank", "trunk_rows"
START_RANK, START_ROWS = "start_rank", "start_rows"  # in the first step, of weights that were given
# Singular values of the trunk's features, in the folder of a run; and the moments.
SPECTRA = "spectra.jsonl"
START, MIDDLE, END = "start", "middle", "end"
PROJECTION_RANK, PROJECTION_STD = "projection_rank", "projection_std"
PATCH_SPREAD, INPUT_STD = "patch_spread", "input_std"
LOSS_FINITE, LOSS_SCALE = "loss_finite", "loss_scale"
READ = (ENTROPY, USED, PATCH_ENTROPY, PATCH_USED, PATCH_LOSS, KOLEO, INFORMATION, TRUNK_RANK,
        TRUNK_ROWS, START_RANK, START_ROWS, PROJECTION_RANK, PATCH_SPREAD, INPUT_STD, LOSS_FINITE,
        LOSS_SCALE, PROJECTION_STD)  # fmt: skip

NOT_FINITE = "not finite"  # a finding
SAYS_NOTHING = 0.02  # nats
LEFT = 0.25  # of the largest value so far
ALIKE_RANK, ALIKE_SPREAD, ALIKE_INPUT = 1.5, 0.05, 1e-6
ONE_LINE = 2.0  # RankMe of projections that are hardly more than a line
FEWEST_ROWS = 8  # of the trunk, to judge how many dimensions or prototypes they fill
COINCIDE = 14.0  # KoLeo of two views: a mean distance of exp(-7), 1e-3
COPIES = (
    "Look at the images of config.DATA.TRAIN (`sslengine doctor FOLDER` counts copies) and at "
    "config.DATA.TRAIN.TRANSFORMS."
)
STARTED_SO = (
    "So it was in the first step: config.MODEL.WEIGHTS_INIT.PARAMS_FILE gives all images the same "
    "features. Take other weights; or do config.DATA.TRAIN.TRANSFORMS end in another range than "
    "theirs?"
)


class Sign(NamedTuple):
    what: str
    value: str
    advice: str  # the probable cause, and what to change

    def __str__(self) -> str:
        return f"{self.what}: {self.value}. {self.advice}"


def find_signs(ends: Sequence[Metrics], config: Mapping[str, Any]) -> Iterator[Sign]:
    """Yield what the last phase of a run shows; config: of the run, or its stored form."""
    if ends and ends[-1].get(INPUT_STD, math.nan) < ALIKE_INPUT:  # the rest follows from it
        yield Sign("equal images", "the images of a batch are copies of one", COPIES)
    elif ends:
        for rule in _RULES:
            yield from rule(ends, Remedies(config))


class Range(NamedTuple):
    """A metric of health, and between which values it is healthy."""

    metric: str
    title: str
    caption: str
    low: float | None = None
    high: float | None = None


def healthy_ranges(ends: Sequence[Metrics], config: Mapping[str, Any]) -> list[Range]:
    """Return the ranges of the metrics that the last train phase has: the rules' own limits."""
    if not ends:
        return []
    run, last = Remedies(config), ends[-1]
    quarter = f"Below {LEFT:.0%} of the most so far it has lost them."
    found = [
        Range(TRUNK_RANK, "Dimensions in use, trunk", f"RankMe of one batch. {quarter}",
              max(ALIKE_RANK, LEFT * max(_most(TRUNK_RANK, ends), _start_rank(last)))),
        Range(PROJECTION_RANK, "Dimensions in use, projection",
              "RankMe of the outputs that the loss compares. Near 1 they are all alike.",
              ONE_LINE),
        Range(PROJECTION_STD, "Spread of the projections",
              "Standard deviation of unit vectors over images. 0: all are alike.", 0.0),
        Range(PATCH_SPREAD, "Spread of the patches",
              "How far an image's patches differ from their mean. 0: all are alike.", ALIKE_SPREAD),
        Range(INPUT_STD, "Spread of the input",
              "Of the images that the network gets. 0: they are copies of one.", ALIKE_INPUT),
        Range(KOLEO, "KoLeo", "Above its limit nearest images have the same features.",
              None, COINCIDE),
        Range(INFORMATION, "Information of the targets",
              "Nats that a target says of its image. 0: nothing.", SAYS_NOTHING),
        Range(LOSS_SCALE, "Loss scale", "fp16: it falls with every overflow.", 1.0),
    ]  # fmt: skip
    for targets in (IMAGES, PATCHES):
        most = math.log(run.prototypes(targets))
        found += [
            Range(targets.entropy, f"Entropy of the {targets.of}targets",
                  "At ln K all prototypes are alike to the teacher, at 0 each target is one.",
                  SAYS_NOTHING, None if math.isnan(most) else UNIFORM * most),
            Range(targets.used, f"Prototypes in use{', patches' if targets.of else ''}", quarter,
                  LEFT * _most(targets.used, ends)),
        ]  # fmt: skip
    return [each for each in found if each.metric in last]


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


def _uniform(ends: Sequence[Metrics], run: Remedies) -> Iterator[Sign]:
    for targets in (IMAGES, PATCHES):
        entropy = ends[-1].get(targets.entropy, 0.0)
        if run.is_uniform(entropy, targets):
            advice = run.sharper(targets, times=2.5) or run.slow_teacher()
            if not advice and targets is IMAGES:
                advice = run.fewer_prototypes()
            if not advice and run.get("ema_center") < 0.5:
                advice = f"The centre follows single batches. {run.set('ema_center', 0.9)}"
            most = math.log(run.prototypes(targets))
            value = f"the teacher's entropy is {entropy:.3f}, ln K is {most:.3f}"
            advice = advice or run.sharper(targets) or run.lower_rate()
            yield Sign(f"uniform {targets.of}targets", value, advice)


def _one_hot(ends: Sequence[Metrics], run: Remedies) -> Iterator[Sign]:
    for targets in (IMAGES, PATCHES):
        entropy = ends[-1].get(targets.entropy, math.nan)
        if entropy < SAYS_NOTHING and ends[-1].get(targets.used, 0.0) >= 2.0:
            value = f"the teacher's entropy is {abs(entropy):.3f}"
            advice = run.softer(targets) or run.lower_rate()
            yield Sign(f"one-hot {targets.of}targets", value, advice)


def _more_prototypes(ends: Sequence[Metrics], run: Remedies) -> Iterator[Sign]:
    entropy = ends[-1].get(ENTROPY, 0.0)
    if entropy < SPREAD * math.log(run.prototypes()) or run.is_uniform(entropy):
        return
    if advice := run.fewer_prototypes():
        value = f"a target is spread over {math.exp(entropy):.0f} of {run.prototypes():g}"
        yield Sign("more prototypes than rows", value, advice)


def _prototypes(ends: Sequence[Metrics], run: Remedies) -> Iterator[Sign]:
    if _rows(ends[-1]) < FEWEST_ROWS:
        return
    for targets in (IMAGES, PATCHES) if ends[-1].get(PATCH_LOSS) != 0.0 else (IMAGES,):
        used = ends[-1].get(targets.used, math.nan)
        most = _most(targets.used, ends)
        of_all = f"{used:.1f} of {run.prototypes(targets):g} prototypes are in use"
        advice = run.fixed_centre() or run.slow_teacher() or run.sinkhorn()
        if used < 2.0:
            yield Sign(f"one {targets.of}prototype", of_all, advice or run.lower_rate())
        elif used < LEFT * most:
            too_many = (
                f"They may be too many for the batch: set num_clusters in config.MODEL.HEAD.PARAMS "
                f"to {max(2, round(most))}."
            )
            value = f"{of_all}, after {most:.1f}"
            yield Sign(f"fewer {targets.of}prototypes", value, advice or too_many)


def _no_hidden_patches(ends: Sequence[Metrics], run: Remedies) -> Iterator[Sign]:
    """A cross entropy is never 0, but where it has no terms."""
    if ends[-1].get(PATCH_LOSS) == 0.0 and run.get("patch_weight") > 0.0:
        where = "config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS (of MaskedImageModeling pred_ratio_mean)"
        advice = f"Raise shares and masked_views in {where}, or the size of the views"
        yield Sign(
            "no hidden patches", f"{PATCH_LOSS} is 0", f"{advice}; or: {run.set('patch_weight', 0)}"
        )


def _positions(ends: Sequence[Metrics], run: Remedies) -> Iterator[Sign]:
    known = ends[-1].get(INFORMATION, math.nan)
    if known < SAYS_NOTHING and not run.is_uniform(ends[-1].get(ENTROPY, 0.0)):
        if run.options.get("positionwise", True):
            advice = run.slow_teacher() or run.lower_rate()
        else:
            advice = f"Clusters may have become positions. {run.set('positionwise', 'true')}"
        value = f"a target says {known:.3f} nats of the image"
        yield Sign("targets without images", value, advice)


def _equal_images(ends: Sequence[Metrics], run: Remedies) -> Iterator[Sign]:
    if _rows(ends[-1]) < FEWEST_ROWS:
        return
    rank, start = ends[-1].get(TRUNK_RANK, math.nan), _start_rank(ends[-1])
    most = max(_most(TRUNK_RANK, ends), start)
    advice = run.slow_teacher() or run.lower_rate()
    if rank < ALIKE_RANK:
        advice = STARTED_SO if 0.0 < start < ALIKE_RANK else advice
        yield Sign("equal images", f"RankMe of the trunk is {rank:.2f}", advice)
    elif rank < LEFT * most:
        yield Sign("fewer dimensions", f"RankMe is {rank:.1f}, after {most:.1f}", advice)
    projections = ends[-1].get(PROJECTION_RANK, math.nan)
    if projections < ONE_LINE and not rank < ALIKE_RANK:
        value = f"RankMe of the projections is {projections:.2f}"
        yield Sign("equal projections", value, advice)


def _equal_patches(ends: Sequence[Metrics], run: Remedies) -> Iterator[Sign]:
    spread = ends[-1].get(PATCH_SPREAD, math.nan)
    if spread < ALIKE_SPREAD:
        advice = run.slow_teacher()
        if not advice and run.get("patch_weight") < 1.0:
            advice = f"Patches have little part in the loss. {run.set('patch_weight', 1.0)}"
        value = f"the patches of an image differ by {spread:.1e} of their length"
        yield Sign("equal patches", value, advice or run.lower_rate())


def _koleo(ends: Sequence[Metrics], run: Remedies) -> Iterator[Sign]:
    value = ends[-1].get(KOLEO, math.nan)
    if value == 0.0:
        advice = "It needs two images per rank: raise config.DATA.TRAIN.BATCHSIZE_PER_REPLICA"
        over = run.set("koleo_over_ranks", "true")
        advice += f", or, of several ranks: {over}" if over else "."
        yield Sign("KoLeo", "no image has a neighbour", advice)
    elif value > COINCIDE:
        advice = (
            "Nearest images have the same features: copies of an image in the batch, or a "
            "trunk that has collapsed. Remove the copies"
        )
        weight = run.set("koleo_weight", 0)
        advice += f", or: {weight}" if weight else "."
        yield Sign("KoLeo", f"it is {value:.1f}", advice)


def _not_finite(ends: Sequence[Metrics], run: Remedies) -> Iterator[Sign]:
    scale = ends[-1].get(LOSS_SCALE, math.nan)
    finite = ends[-1].get(LOSS_FINITE, 1.0) == 1.0
    if finite and not scale < 1.0:
        return
    value = "the loss is not finite" if not finite else f"the loss scale is down at {scale:.1e}"
    advice = run.leave_fp16() or run.softer(IMAGES, times=0.1) or run.softer(PATCHES, times=0.1)
    yield Sign(NOT_FINITE, value, advice or run.lower_rate())


def _rows(end: Metrics) -> float:
    """Return the rows of the trunk's features; older versions do not say it, and count as many."""
    return end.get(TRUNK_ROWS, math.inf)


def _most(name: str, ends: Sequence[Metrics]) -> float:
    """Return the largest so far, of no more rows than the last ones."""
    return max(each.get(name, 0.0) for each in ends if _rows(each) <= _rows(ends[-1]))


def _start_rank(end: Metrics) -> float:
    """Return RankMe of the weights that the run started from, if it is of no more rows."""
    return end.get(START_RANK, 0.0) if end.get(START_ROWS, math.inf) <= _rows(end) else 0.0


_RULES: tuple[Callable[[Sequence[Metrics], Remedies], Iterator[Sign]], ...] = (
    _uniform, _one_hot, _more_prototypes, _prototypes, _no_hidden_patches, _positions,
    _equal_images, _equal_patches, _koleo, _not_finite,
)  # fmt: skip
