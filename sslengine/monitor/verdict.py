"""Tell whether a run is good and what comes next: the first rule that holds gives both.

    verdict = judge_run(read_facts(folder))

    failed              it ended with an error
    diverged            the loss is ten times what it was
    collapsing          collapse.py has found a sign of it
    stopped, running    it has not come to its end
    not judged          labels, or images of a test, would say whether it learned
    learned nothing     no better than the network with random weights
    not above pixels    no better than the pixels themselves
    learned

Scores are compared on the same test images: by the paired difference and its 95 % interval, where
the report has it. The caveats say what makes the sentence doubtful. The end of a run,
`judge`, `doctor`, `report` and the page of a run all show this, and nothing else says it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import hypot
from statistics import median

from sslengine.errors import CollapseError
from sslengine.monitor.collapse import ADVICE, NOT_FINITE
from sslengine.monitor.run_facts import (
    FAILED,
    PIXELS,
    RUNNING,
    STOPPED,
    TRAINED,
    UNTRAINED,
    Facts,
    FeatureScore,
)

TIMES = 10.0  # the loss at the end over that at the start: it has diverged
STEADY = 2.0  # times the median: the last loss before one that is not finite
WAS_STEADY = "The loss was steady before: look for pixels of this step that are not finite."
FEW_RECORDS, FEW_TESTED = 20, 100
WAITING = 0.5  # of a step's time: training is limited by reading images
IMPROVING = 0.01  # of the loss, over the last tenth


@dataclass(frozen=True)
class Verdict:
    rule: str
    status: str
    sentence: str
    detail: str = ""
    command: str = ""
    # What makes the sentence doubtful.
    caveats: Sequence[str] = ()

    @property
    def text(self) -> str:
        """Join the parts as lines for a terminal."""
        lines = [self.sentence, self.detail, *(f"But {each}" for each in self.caveats)]
        return "\n".join([*filter(None, lines), *([f"  {self.command}"] if self.command else [])])


def judge_run(facts: Facts) -> Verdict:
    """Apply the first rule that holds; the last one always does."""
    found = ((rule, compute(facts)) for rule, compute in RULES.items())
    rule, said = next((rule, said) for rule, said in found if said is not None)
    return Verdict(rule, facts.status.status, *said, tuple(caveats_of(facts)))


Said = tuple[str, str, str]  # sentence, detail, command


def _failed(facts: Facts) -> Said | None:
    status = facts.status
    if status.status != FAILED or (status.error == CollapseError.__name__ and facts.found):
        return None
    told = f"Failed at step {status.step}: {status.cause.rstrip('.')}."
    if not status.is_not_finite:
        return told, f"The log has the whole error: {facts.folder / 'log.txt'}", facts.command
    sizes = [*map(abs, facts.losses)]
    steady = len(sizes) > 1 and sizes[-1] <= STEADY * median(sizes)
    advice = f"{WAS_STEADY if steady else ''} {ADVICE[NOT_FINITE]}".strip()
    return told, advice, f"sslengine replay {facts.run}"


def _diverged(facts: Facts) -> Said | None:
    if len(facts.losses) < FEW_RECORDS:
        return None
    part = len(facts.losses) // 10
    first, last = (median(map(abs, some)) for some in (facts.losses[:part], facts.losses[-part:]))
    if not last > TIMES * first > 0:
        return None
    return f"Diverged: the loss went from {first:.3g} to {last:.3g}.", ADVICE["diverged"], ""


def _collapsing(facts: Facts) -> Said | None:
    if not facts.found:
        return None
    found = facts.found[0]
    return f"Collapsing since epoch {facts.since}: {found.what}, {found.value}.", found.advice, ""


def _stopped(facts: Facts) -> Said | None:
    status = facts.status
    if status.status != STOPPED:
        return None
    saved = status.cause.startswith("stopped by")
    of = f" of {status.steps}" if status.steps else ""
    told = f"{'Stopped and saved' if saved else 'Stopped'} after step {status.step}{of}."
    why = "" if saved or not status.cause else f"{status.cause[0].upper()}{status.cause[1:]} "
    return told, f"{why}The same command resumes it.", facts.command


def _running(facts: Facts) -> Said | None:
    if facts.status.status != RUNNING:
        return None
    online = {name: row[name] for row in facts.rows for name in row if name.startswith("online.")}
    shown = ", ".join(f"{name.removeprefix('online.').replace('_', ' ')} {value:.1f}"
                      for name, value in online.items() if "." not in name[7:])  # fmt: skip
    loss = f"loss {facts.losses[-1]:.3g}" if facts.losses else "no loss yet"
    told = f"Running: step {facts.status.step} of {facts.status.steps}, {shown or loss}."
    return told, "No sign of collapse so far." if facts.ends else "", ""


def _not_judged(facts: Facts) -> Said | None:
    if facts.metrics:
        return None
    end = "Trained to the end, no sign of collapse"
    if facts.evaluation:
        return f"{end}; labels would say whether it learned.", "", ""
    return f"{end}; not judged yet.", "", f"sslengine judge {facts.run}"


def _learned(facts: Facts) -> Said | None:
    metric = facts.metrics[0]
    scores = facts.scores(metric)
    others = [f"{name} {scores[name].value:.1f}" for name in (UNTRAINED, PIXELS) if name in scores]
    told = f"{facts.name(metric)} {scores[TRAINED].value:.1f} %"
    if not others:
        return f"{told}, with nothing to compare it with.", "", ""
    told = f"{told}, {', '.join(others)}: it learned."
    detail = _gains(facts, PIXELS if PIXELS in scores else UNTRAINED)
    if _is_improving(facts):
        detail += " It is still improving: a longer run will be better."
    return told, detail, f"sslengine embed {facts.run} IMAGES --out features.parquet"


def _not_better(facts: Facts, than: str, said: str) -> Said | None:
    """Say that the trained features are no better, by the first metric, than others."""
    metric = facts.metrics[0]
    scores = facts.scores(metric)
    own, other = scores[TRAINED], scores.get(than)
    if other is None or _is_better(own, other):
        return None
    told = f"{said} ({facts.name(metric)} {own.value:.1f} against {other.value:.1f} %)."
    made = facts.status.step  # 0: a network that was not trained here
    lacks = f" It made {made} steps: train for longer, or on more images." if made else ""
    return told, f"{_gains(facts, than)}{lacks}", ""


def _is_better(own: FeatureScore, other: FeatureScore) -> bool:
    """Compare by the paired interval; without one, by more than both intervals together."""
    if other.gain is not None:
        return other.gain[1] > 0
    return own.value - other.value > hypot(own.half, other.half)


def _gains(facts: Facts, than: str) -> str:
    """Tell the differences to one kind of features on the same images, with their intervals."""
    shown = []
    for metric in dict.fromkeys((facts.metrics[0], *facts.metrics[-1:])):
        other = facts.scores(metric).get(than)
        if other is not None and other.gain is not None:
            by, low, high = other.gain
            shown.append(f"{by:+.1f} points ({low:.1f} to {high:.1f}) by {facts.name(metric)}")
    if not shown:
        return "The report has no answer to each image: judge again for the difference on the same."
    whom = "the untrained network" if than == UNTRAINED else than
    return f"On the same {facts.tested} images, against {whom}: {', '.join(shown)}."


def _is_improving(facts: Facts) -> bool:
    """Tell whether loss and, where there is one, online score improve over the last tenth."""
    losses, part = facts.losses, len(facts.losses) // 10
    if part < 2:
        return False
    before, last = median(losses[-2 * part : -part]), median(losses[-part:])
    online = [row[name] for row in facts.rows if row["kind"] == "phase"
              for name in row if name.startswith("online.knn")]  # fmt: skip
    fell = before - last > IMPROVING * abs(before)
    return fell and (len(online) < 3 or online[-1] > online[-2])


def caveats_of(facts: Facts) -> Iterator[str]:
    """Yield what makes the sentence doubtful, each a clause."""
    evaluation = facts.evaluation
    if copies := evaluation.get("copies"):
        yield f"{copies} of {facts.tested} test images are also training images: remove them."
    about = facts.about
    if about.get("knn_on", "TEST") != "TEST":
        yield "it is scored on the images that it was trained on: other images would say more."
    elif facts.metrics and facts.tested < FEW_TESTED:
        yield f"{facts.tested} test images are few: only large differences can be seen."
    for metric in about.get("constant", ()):
        yield f"the {facts.name(metric)} gives all images the same class."
    if below := evaluation.get("below_pixels"):
        yield f"raw pixels are better for {', '.join(below[:5])}{', ...' * (len(below) > 5)}."
    waited = share_waited(facts)
    if waited > WAITING:
        yield (f"steps waited for images {waited:.0%} of the time: more DATA."
               f"NUM_DATALOADER_WORKERS, or smaller files.")  # fmt: skip


def share_waited(facts: Facts) -> float:
    """Return the share of a step in which it waits for its batch; 0 where it is not known."""
    ranks = facts.config.get("DISTRIBUTED", {})
    images = facts.config.get("DATA", {}).get("TRAIN", {}).get("BATCHSIZE_PER_REPLICA", 0)
    images *= ranks.get("NUM_NODES", 1) * ranks.get("NUM_PROC_PER_NODE", 1)
    shares = [row["data_seconds"] * row["images_per_s"] / images for row in facts.rows
              if row["kind"] == "step" and "data_seconds" in row and images]  # fmt: skip
    return min(1.0, median(shares)) if len(shares) >= FEW_RECORDS else 0.0


RULES: Mapping[str, Callable[[Facts], Said | None]] = {
    "failed": _failed,
    "diverged": _diverged,
    "collapsing": _collapsing,
    "stopped": _stopped,
    "running": _running,
    "not judged": _not_judged,
    "learned nothing": partial(_not_better, than=UNTRAINED, said="Learned nothing that kNN sees"),
    "not above pixels": partial(_not_better, than=PIXELS, said="Not better than raw pixels"),
    "learned": _learned,
}
