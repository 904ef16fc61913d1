"""Has a run collapsed, why, and which key of its config to change?

    for each in findings(ends, config):     ends: the metrics at the end of each train phase
        print(each)

Each rule is a function of this file that looks at the last phase and, where it needs them, at the
earlier ones. Metrics that are absent say nothing. The rules know options by their names
(`teacher_temp_max`, `momentum`, ...), whichever method has them.

    uniform             the teacher's entropy is ln K: its targets say nothing
    one prototype       all targets are one prototype
    fewer prototypes    less than a quarter of the prototypes that were in use
    without images      the targets of patches depend on their positions alone
    equal images        the trunk gives all images the same features
    equal patches       it gives all patches of an image the same features
    fewer dimensions    RankMe of the trunk is below a quarter of what it was
    KoLeo               nearest neighbours coincide, or there are none
    not finite          the loss is NaN or infinite, or every step overflows in fp16
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Metrics = Mapping[str, float]

# The metrics that the rules read.
ENTROPY, USED, KOLEO = "loss.teacher_entropy", "loss.prototypes_used", "loss.koleo"
INFORMATION = "loss.image_information"
TRUNK_RANK, PATCH_SPREAD = "trunk_rank", "patch_spread"
LOSS_FINITE, LOSS_SCALE = "loss_finite", "loss_scale"
READ = (ENTROPY, USED, KOLEO, INFORMATION, TRUNK_RANK, PATCH_SPREAD, LOSS_FINITE, LOSS_SCALE)

UNIFORM = 0.99  # of ln K
SAYS_NOTHING = 0.02  # nats
LEFT = 0.25  # of the largest value so far
ALIKE_RANK, ALIKE_SPREAD = 1.2, 0.05
COINCIDE = 14.0  # KoLeo of two views: a mean distance of exp(-7), 1e-3
SLOW_TEACHER = 0.9
# What makes targets flat, and its usual value; of the first two in student's temperatures.
USUAL = {"teacher_temp_max": 0.4, "target_temp": 0.5, "sharpen": 0.25, "temperature": 0.1}


class Finding(NamedTuple):
    what: str
    value: str
    advice: str  # the probable cause, and what to change

    def __str__(self) -> str:
        return f"{self.what}: {self.value}. {self.advice}"


def findings(ends: Sequence[Metrics], config: Mapping[str, Any]) -> Iterator[Finding]:
    """What the last phase of a run shows; config: `config` of the run, or its stored form."""
    if ends:
        for rule in _RULES:
            yield from rule(ends, _Run(config))


def ends_of_phases(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The newest value of each metric at the end of each train phase, or where the run failed.

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


class _Run:
    """The options that rules ask for and suggest."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.method = str(config["LOSS"]["name"])
        self.options: Mapping[str, Any] = config["LOSS"].get(self.method) or {}

    def get(self, option: str, absent: float = math.nan) -> float:
        """An option of the method; comparisons with NaN are false."""
        value = self.options.get(option, absent)
        return float(value) if isinstance(value, (int, float)) else absent

    def set(self, option: str, value: Any) -> str:
        return f"Set config.LOSS.{self.method}.{option}={value} (now {self.options[option]})."

    def prototypes(self) -> float:
        """K: how many scores a target has."""
        names = ("num_prototypes", "num_clusters", "output_dim")
        return next((self.get(each) for each in names if each in self.options), math.nan)

    def is_uniform(self, entropy: float) -> bool:
        return entropy >= UNIFORM * math.log(self.prototypes())

    def sharper(self, times: float = 0.0) -> str:
        """What to set for sharper targets, if an option is so many times its usual value."""
        student = self.get("student_temp", 0.1)
        usual = {name: round(value * (student if "_temp" in name else 1.0), 3)
                 for name, value in USUAL.items() if name in self.options}  # fmt: skip
        suspect = max(usual, key=lambda name: self.get(name) / usual[name], default="")
        if not suspect or self.get(suspect) < times * usual[suspect]:
            return ""
        now, lower = self.get(suspect), usual[suspect]
        lower = lower if now > lower else max(0.02, round(now / 2, 3))
        return f"The targets are too flat. {self.set(suspect, lower)}"

    def slow_teacher(self) -> str:
        """What to set if the teacher is hardly behind the student."""
        if self.get("momentum") >= SLOW_TEACHER or "momentum" not in self.options:
            return ""
        return f"The teacher is almost the student. {self.set('momentum', 0.99)}"

    def lower_rate(self) -> str:
        where = "config.OPTIMIZER.param_schedulers.lr"
        schedule = self.config["OPTIMIZER"]["param_schedulers"].get("lr")
        highest = max(_rates(schedule), default=math.nan)
        return (
            f"The learning rate may be too high. Lower the values of {where}: the highest is "
            f"{highest:g}, try {highest / 3:.2g}."
        )

    def sinkhorn(self) -> str:
        """Equal shares for all prototypes, for methods that offer it and do not use it."""
        if self.options.get("sinkhorn_iterations") == 0:
            return self.set("sinkhorn_iterations", 3)
        return self.set("targets", "sinkhorn") if self.options.get("targets") == "center" else ""


def _rates(schedule: Any, name: str = "value") -> Iterator[float]:
    """The numbers of a schedule that are rates, at any depth."""
    if isinstance(schedule, Mapping):
        for key, each in schedule.items():
            yield from _rates(each, str(key))
    elif isinstance(schedule, (int, float)):
        if name in ("value", "values", "start_value", "end_value"):
            yield float(schedule)
    elif schedule is not None and not isinstance(schedule, str):
        for each in schedule:
            yield from _rates(each, name)


def _uniform(ends: Sequence[Metrics], run: _Run) -> Iterator[Finding]:
    entropy = ends[-1].get(ENTROPY, 0.0)
    if run.is_uniform(entropy):
        advice = run.sharper(times=2.5) or run.slow_teacher()
        if not advice and run.get("ema_center") < 0.5:
            advice = f"The centre follows single batches. {run.set('ema_center', 0.9)}"
        value = f"the teacher's entropy is {entropy:.3f}, ln K is {math.log(run.prototypes()):.3f}"
        yield Finding("uniform targets", value, advice or run.sharper() or run.lower_rate())


def _prototypes(ends: Sequence[Metrics], run: _Run) -> Iterator[Finding]:
    used = ends[-1].get(USED, math.nan)
    most = max(each.get(USED, 0.0) for each in ends)
    of_all = f"{used:.1f} of {run.prototypes():g} prototypes are in use"
    if used < 2.0:
        if run.options.get("targets", "center") == "center" and run.get("ema_center") > 0.99:
            advice = f"The centre does not move. {run.set('ema_center', 0.9)}"
        else:
            advice = run.slow_teacher() or run.sinkhorn() or run.lower_rate()
        yield Finding("one prototype", of_all, advice)
    elif used < LEFT * most:
        advice = (
            run.slow_teacher()
            or run.sinkhorn()
            or (
                f"They may be too many for the batch: set num_clusters in config.MODEL.HEAD.PARAMS "
                f"to {max(2, round(most))}."
            )
        )
        yield Finding("fewer prototypes", f"{of_all}, after {most:.1f}", advice)


def _positions(ends: Sequence[Metrics], run: _Run) -> Iterator[Finding]:
    known = ends[-1].get(INFORMATION, math.nan)
    if known < SAYS_NOTHING and not run.is_uniform(ends[-1].get(ENTROPY, 0.0)):
        if run.options.get("positionwise", True):
            advice = run.slow_teacher() or run.lower_rate()
        else:
            advice = f"Clusters may have become positions. {run.set('positionwise', 'true')}"
        value = f"a target says {known:.3f} nats of the image"
        yield Finding("targets without images", value, advice)


def _equal_images(ends: Sequence[Metrics], run: _Run) -> Iterator[Finding]:
    rank = ends[-1].get(TRUNK_RANK, math.nan)
    most = max(each.get(TRUNK_RANK, 0.0) for each in ends)
    advice = run.slow_teacher() or run.lower_rate()
    if rank < ALIKE_RANK:
        yield Finding("equal images", f"RankMe of the trunk is {rank:.2f}", advice)
    elif rank < LEFT * most:
        yield Finding("fewer dimensions", f"RankMe is {rank:.1f}, after {most:.1f}", advice)


def _equal_patches(ends: Sequence[Metrics], run: _Run) -> Iterator[Finding]:
    spread = ends[-1].get(PATCH_SPREAD, math.nan)
    if spread < ALIKE_SPREAD:
        advice = run.slow_teacher()
        if not advice and run.get("patch_weight") < 1.0:
            advice = f"Patches have little part in the loss. {run.set('patch_weight', 1.0)}"
        value = f"the patches of an image differ by {spread:.1e} of their length"
        yield Finding("equal patches", value, advice or run.lower_rate())


def _koleo(ends: Sequence[Metrics], run: _Run) -> Iterator[Finding]:
    value = ends[-1].get(KOLEO, math.nan)
    if value == 0.0:
        advice = "It needs two images per rank: raise config.DATA.TRAIN.BATCHSIZE_PER_REPLICA"
        over = run.set("koleo_over_ranks", "true")
        yield Finding(
            "KoLeo", "no image has a neighbour", f"{advice}, or, of several ranks: {over}"
        )
    elif value > COINCIDE:
        advice = (
            "Nearest images have the same features: copies of an image in the batch, or a "
            "trunk that has collapsed. Remove the copies, or: "
        )
        weight = run.set("koleo_weight", 0)
        yield Finding("KoLeo", f"it is {value:.1f}", advice + weight)


def _not_finite(ends: Sequence[Metrics], run: _Run) -> Iterator[Finding]:
    scale = ends[-1].get(LOSS_SCALE, math.nan)
    finite = ends[-1].get(LOSS_FINITE, 1.0) == 1.0
    if finite and not scale < 1.0:
        return
    value = "the loss is not finite" if not finite else f"the loss scale is down at {scale:.1e}"
    yield Finding("not finite", value, run_without_fp16(run.config) or run.lower_rate())


def run_without_fp16(config: Mapping[str, Any]) -> str:
    """What to set, if the run computes in fp16."""
    chosen, amp = config["MACHINE"]["PRECISION"], config["MODEL"]["AMP_PARAMS"]
    if chosen == "fp16":
        return "fp16 overflows. Set config.MACHINE.PRECISION=bf16 (or fp32)."
    if chosen or not amp["USE_AMP"]:
        return ""
    if amp["AMP_TYPE"] == "apex" and amp["AMP_ARGS"].get("opt_level") != "O0":
        return "fp16 overflows. Set config.MACHINE.PRECISION=bf16 (or fp32)."
    if amp["AMP_TYPE"] == "pytorch" and amp["AMP_DTYPE"] == "float16":
        return "fp16 overflows. Set config.MODEL.AMP_PARAMS.AMP_DTYPE=bfloat16."
    return ""


_RULES: tuple[Callable[[Sequence[Metrics], _Run], Iterator[Finding]], ...] = (
    _uniform, _prototypes, _positions, _equal_images, _equal_patches, _koleo, _not_finite,
)  # fmt: skip
