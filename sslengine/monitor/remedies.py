"""Which option of a run is the probable cause of a collapse, and what to set it to.

The options are known by their names (`teacher_temp_max`, `momentum`, ...), whichever method has
them. A remedy is a sentence, or empty where the run gives no reason for it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from sslengine.config.facts import precision_of_amp
from sslengine.registry import component_key

UNIFORM = 0.99  # of ln K
SPREAD = 0.5  # of ln K: the least entropy of N equal shares of K > N prototypes is ln(K / N)
SLOW_TEACHER = 0.9


class Targets(NamedTuple):
    of: str
    entropy: str
    used: str
    sizes: Sequence[str]  # options that may hold K, the first that a method has
    # What makes targets flat, and its usual value; names with _temp in student's temperatures.
    flat: Mapping[str, float]


IMAGES = Targets(
    "", "loss.teacher_entropy", "loss.prototypes_used",
    ("num_prototypes", "num_clusters", "output_dim"),
    {"teacher_temp_max": 0.4, "teacher_temp_min": 0.4, "target_temp": 0.5, "sharpen": 0.25,
     "temperature": 0.1},
)  # fmt: skip
PATCHES = Targets(
    "patch ",
    "loss.patch_teacher_entropy",
    "loss.patch_prototypes_used",
    ("patch_output_dim",),
    {"patch_temp_max": 0.4, "patch_temp_min": 0.4},
)


class Remedies:
    """For one run, of its config."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.method = component_key(str(config["LOSS"]["name"]))
        self.options: Mapping[str, Any] = config["LOSS"].get(self.method) or {}

    def get(self, option: str, absent: float = math.nan) -> float:
        """Return an option of the method; comparisons with NaN are false."""
        value = self.options.get(option, absent)
        return float(value) if isinstance(value, (int, float)) else absent

    def set(self, option: str, value: Any) -> str:
        """Say what to set; empty for a method without this option."""
        if option not in self.options:
            return ""
        return f"Set config.LOSS.{self.method}.{option}={value} (now {self.options[option]})."

    def prototypes(self, targets: Targets = IMAGES) -> float:
        """Return K: how many scores a target has."""
        found = next((self.get(each) for each in targets.sizes if each in self.options), math.nan)
        return found if found > 0 else math.nan

    def is_uniform(self, entropy: float, targets: Targets = IMAGES) -> bool:
        return entropy >= UNIFORM * math.log(self.prototypes(targets))

    def sharper(self, targets: Targets, times: float = 0.0) -> str:
        """Say what to set for sharper targets, if an option is so many times its usual value."""
        usual = self._usual(targets)
        suspect = max(usual, key=lambda name: self.get(name) / usual[name], default="")
        if not suspect or not self.get(suspect) >= times * usual[suspect]:
            return ""
        now, lower = self.get(suspect), usual[suspect]
        lower = lower if now > lower else max(0.02, round(now / 2, 3))
        return f"The targets are too flat. {self.set(suspect, lower)}"

    def softer(self, targets: Targets, times: float = 1.0) -> str:
        """Say what to set for softer targets: options below so many times their usual values."""
        low = {name: value for name, value in self._usual(targets).items()
               if self.get(name) < times * value}  # fmt: skip
        if not low:
            return ""
        return f"The targets are too sharp. {' '.join(self.set(*each) for each in low.items())}"

    def _usual(self, targets: Targets) -> dict[str, float]:
        """Return the usual values of the method's options that make targets flat."""
        student = self.get("student_temp", 0.1)
        return {name: round(value * (student if "_temp" in name else 1.0), 3)
                for name, value in targets.flat.items() if name in self.options}  # fmt: skip

    def rows(self) -> float:
        """Count the rows that Sinkhorn assigns to prototypes together; NaN if it does not."""
        assigns = self.options.get("targets", "sinkhorn") == "sinkhorn"
        if not assigns or not self.get("sinkhorn_iterations") > 0:
            return math.nan
        if not self.options.get("positionwise", True):
            return math.nan  # all patches
        ranks = self.config["DISTRIBUTED"]
        images = self.config["DATA"]["TRAIN"]["BATCHSIZE_PER_REPLICA"]
        views = 1 if {"positionwise", "sharpen"} & {*self.options} else 2  # with a target
        return float(views * images * ranks["NUM_NODES"] * ranks["NUM_PROC_PER_NODE"])

    def fewer_prototypes(self) -> str:
        """Say what to set if the targets of images have more prototypes than rows can fill."""
        rows, k = self.rows(), self.prototypes()
        if not math.log(k / rows) > SPREAD * math.log(k):
            return ""
        name = next(each for each in IMAGES.sizes if each in self.options)
        where = f"config.LOSS.{self.method}.{name}"
        where = "num_clusters in config.MODEL.HEAD.PARAMS" if name == "output_dim" else where
        more = "raise config.DATA.TRAIN.BATCHSIZE_PER_REPLICA"
        if "targets" in self.options:
            more += f", or set config.LOSS.{self.method}.targets=center"
        return (
            f"{k:g} prototypes have equal shares of at most {rows:g} rows. Set {where} to "
            f"{rows:g} or less, or {more}."
        )

    def slow_teacher(self) -> str:
        """Say what to set if the teacher is hardly behind the student."""
        if self.get("momentum") >= SLOW_TEACHER or "momentum" not in self.options:
            return ""
        return f"The teacher is almost the student. {self.set('momentum', 0.99)}"

    def fixed_centre(self) -> str:
        if self.options.get("targets", "center") != "center" or not self.get("ema_center") > 0.99:
            return ""
        return f"The centre does not move. {self.set('ema_center', 0.9)}"

    def lower_rate(self) -> str:
        typed = any(each.partition("=")[0] == "--lr" for each in sys.argv)
        where = "--lr" if typed else "config.OPTIMIZER.param_schedulers.lr"
        schedule = self.config["OPTIMIZER"]["param_schedulers"].get("lr")
        highest = max(_rates(schedule), default=math.nan)
        return (
            f"The learning rate may be too high. Lower {where}: the highest is {highest:g}, try "
            f"{highest / 3:.2g}."
        )

    def leave_fp16(self) -> str:
        """Say what to set, if the run computes in fp16."""
        chosen = self.config["MACHINE"]["PRECISION"]
        model = SimpleNamespace(AMP_PARAMS=SimpleNamespace(**self.config["MODEL"]["AMP_PARAMS"]))
        if chosen == "fp16":
            return "fp16 overflows. Set config.MACHINE.PRECISION=bf16 (or fp32)."
        if chosen or precision_of_amp(model) != "fp16":
            return ""
        return "fp16 overflows. Set config.MODEL.AMP_PARAMS.AMP_DTYPE=bfloat16, AMP_TYPE=pytorch."

    def sinkhorn(self) -> str:
        """Say how all prototypes get equal shares, in methods that offer it and do not use it."""
        if self.options.get("sinkhorn_iterations") == 0:
            return self.set("sinkhorn_iterations", 3)
        return self.set("targets", "sinkhorn") if self.options.get("targets") == "center" else ""


def _rates(schedule: Any, name: str = "value") -> Iterator[float]:
    """Yield the numbers of a schedule that are rates, at any depth."""
    if isinstance(schedule, Mapping):
        for key, each in schedule.items():
            yield from _rates(each, str(key))
    elif isinstance(schedule, (int, float)):
        if name in ("value", "values", "start_value", "end_value"):
            yield float(schedule)
    elif schedule is not None and not isinstance(schedule, str):
        for each in schedule:
            yield from _rates(each, name)
