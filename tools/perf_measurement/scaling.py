#!/usr/bin/env python3
"""A training step on 8 to 4,096 GPUs, predicted from what it does on two ranks of this machine.

    python tools/perf_measurement/scaling.py predict               every method that was measured
    python tools/perf_measurement/scaling.py predict simclr --gpus 64 512 --compute-ms 180
    python tools/perf_measurement/scaling.py messages              what a rank tells others
    python tools/perf_measurement/scaling.py table                 both in short, for docs/
    python tools/perf_measurement/scaling.py check simclr swav     predicted beside measured, here
    python tools/perf_measurement/scaling.py measure pretrain/simclr/simclr_64gpu_resnet50

measure runs steps of a config on gloo ranks, writes down every collective (DDP's own too) with
its bytes, multiplications and memory, and adds them to docs/scaling.json, from which predict
reads. check measures latency and bandwidth of gloo on this machine, and the computation of 1, 2
and 4 processes side by side that say nothing to each other; the sum is the prediction for 1, 2
and 4 ranks, which are then run.

What is assumed is printed above each prediction, and each number of it is an option.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent))
from scaling_cost import Fabric, Link, sent_by_a_rank
from scaling_measure import Fit, Message, fits, measure, step_seconds, with_config
from scaling_predict import MACHINES, Machine, Method, breaks_first, predict

MEASURED = Path(__file__).resolve().parents[2] / "docs" / "scaling.json"
GPUS = (8, 64, 512, 4096)
SIZES = [2**power for power in range(8, 25, 2)]

console = Console()


# ---- measure


def run_measure(given: argparse.Namespace) -> dict[str, Any]:
    known = _read(given.file) if given.file.exists() else {}
    for name in given.configs:
        facts = measure([f"config={name}", *given.overrides], given.ranks)
        known[name] = with_config(name, given.overrides) | facts
        given.file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
        console.print(f"{name}: {len(facts['messages'])} kinds of messages, in {given.file}")
    return known


def _read(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(path.read_text())
    return facts


def chosen(file: Path, names: Sequence[str]) -> dict[str, Method]:
    """The measured configs that have one of the names in theirs; all without names."""
    if not file.exists():
        raise SystemExit(f"{file} is not there: measure something first.")
    known = _read(file)
    found = {
        config: Method.of(facts)
        for config, facts in known.items()
        if not names or any(name in config for name in names)
    }
    if not found:
        raise SystemExit(f"{file} has nothing like {', '.join(names)}; it has {', '.join(known)}.")
    return found


# ---- predict


def machine_of(given: argparse.Namespace) -> Machine:
    base = MACHINES[given.machine]
    fabric = base.fabric
    node, network = fabric.node, fabric.network
    fabric = Fabric(
        Link(_or(given.node_us, node.alpha, 1e-6), _or(given.node_gbs, node.beta, 1e9)),
        Link(_or(given.network_us, network.alpha, 1e-6), _or(given.network_gbs, network.beta, 1e9)),
        given.gpus_per_node or fabric.ranks_per_node,
    )
    changed = {
        "memory": (given.memory_gb, 1e9),
        "flops": (given.tflops, 1e12),
        "utilisation": (given.utilisation, 1.0),
        "overlap": (given.overlap, 1.0),
        "disk": (given.disk_gbs, 1e9),
        "storage": (given.storage_gbs, 1e9),
    }
    values = {name: value * unit for name, (value, unit) in changed.items() if value is not None}
    return dataclasses.replace(base, fabric=fabric, **values)


def _or(value: float | None, default: float, unit: float) -> float:
    return default if value is None else value * unit


def assumptions(machine: Machine, compute_ms: float | None, sharding: str) -> str:
    fabric = machine.fabric
    computed = (
        f"computation: {compute_ms:g} ms, as given"
        if compute_ms is not None
        else f"computation: counted operations at {100 * machine.utilisation:.0f} % of "
        f"{machine.flops / 1e12:.0f} TFLOP/s (of half of it without AMP)"
    )
    return "\n".join(
        (
            f"{fabric.ranks_per_node} GPUs a node; in a node {_link(fabric.node)}, between nodes "
            f"{_link(fabric.network)} for each GPU",
            computed,
            f"gradients travel beside {100 * machine.overlap:.0f} % of it, all else is waited for",
            f"{machine.memory / 1e9:.0f} GB a GPU; weights by {sharding}; a rank writes "
            f"{machine.disk / 1e9:g} GB/s, all together {machine.storage / 1e9:g} GB/s",
        )
    )


def _link(link: Link) -> str:
    return f"{1e6 * link.alpha:g} us + {link.beta / 1e9:g} GB/s"


def run_predict(given: argparse.Namespace) -> dict[str, Any]:
    machine = machine_of(given)
    compute = None if given.compute_ms is None else given.compute_ms / 1e3
    console.print(assumptions(machine, given.compute_ms, given.sharding), highlight=False)
    results: dict[str, Any] = {}
    for name, method in chosen(given.file, given.names).items():
        steps = {
            gpus: predict(method, gpus, machine, given.sharding, compute) for gpus in given.gpus
        }
        results[name] = {
            "steps": {gpus: dataclasses.asdict(step) for gpus, step in steps.items()},
            "breaks first": breaks_first(method, machine, compute),
        }
        console.print(_prediction(name, method, steps))
        console.print(f"breaks first: {results[name]['breaks first']}\n", highlight=False)
    return results


def _prediction(name: str, method: Method, steps: Mapping[int, Any]) -> Table:
    table = Table(title=f"{name}, {method.images} images a GPU", box=None, title_justify="left")
    columns = "GPUs", "step ms", "computes", "waits", "most for", "GB", "saving: waits", "writes"
    for column in columns:
        table.add_column(column, justify="left" if column == "most for" else "right")
    for gpus, step in steps.items():
        most = max(step.waits, key=lambda of: step.waits[of], default="-")
        table.add_row(
            f"{gpus:,}", f"{1e3 * step.seconds:.1f}", f"{1e3 * step.compute:.1f}",
            f"{1e3 * sum(step.waits.values()):.1f}", most, f"{step.memory / 1e9:.1f}",
            f"{step.copy:.2f} s", f"{step.write:.1f} s",
        )  # fmt: skip
    return table


# ---- messages


def run_messages(given: argparse.Namespace) -> dict[str, Any]:
    """A line for each purpose: bytes that leave a rank in a step, at two sizes."""
    rows: dict[str, Any] = {}
    for name, method in chosen(given.file, given.names).items():
        table = Table(title=name, box=None, title_justify="left")
        for column in ("for", "by", "times", *(f"MB at {gpus:,}" for gpus in given.gpus)):
            table.add_column(column, justify="left" if column in ("for", "by") else "right")
        rows[name] = {}
        for (of, kind), messages in _by_purpose(method.messages).items():
            sent = [sum(_sent(method, each, gpus) for each in messages) for gpus in given.gpus]
            rows[name][f"{of}, {kind}"] = dict(zip(given.gpus, sent, strict=True))
            times = sum(each.times for each in messages)
            table.add_row(of, kind, str(times), *(f"{each / 1e6:,.3f}" for each in sent))
        console.print(table)
    return rows


def _by_purpose(messages: Sequence[Message]) -> dict[tuple[str, str], list[Message]]:
    grouped: dict[tuple[str, str], list[Message]] = {}
    for each in messages:
        grouped.setdefault((each.of, each.kind), []).append(each)
    return grouped


# ---- in short


def run_table(given: argparse.Namespace) -> dict[str, Any]:
    """In Markdown: megabytes that leave a rank in a step, and what is predicted."""
    print("| | gradients | beside them, by what for | 8 | 64 | 512 | 4096 | breaks first |")
    print("|---|---|---|---|---|---|---|---|")
    machine = MACHINES["h100"]
    for name, method in sorted(chosen(given.file, given.names).items()):
        steps = [f"{1e3 * predict(method, gpus, machine).seconds:.0f}" for gpus in GPUS]
        sent = {
            of: [sum(_sent(method, each, gpus) for each in method.messages if each.of == of)
                 for gpus in (GPUS[0], GPUS[-1])]
            for of in dict.fromkeys(each.of for each in method.messages)
        }  # fmt: skip
        gradients = sent.pop("gradients", [0.0, 0.0])
        others = "; ".join(f"{of} {_range(*ends)}" for of, ends in sent.items() if max(ends) > 1e4)
        row = [f"`{name.split('/')[-1]}`", _range(*gradients), others or "-", *steps]
        print(f"| {' | '.join([*row, breaks_first(method, machine)])} |")
    return {}


def _sent(method: Method, message: Message, gpus: int) -> float:
    size = message.size(method.images)
    return message.times * sent_by_a_rank(message.kind, method.among(message, gpus), size)


def _range(few: float, many: float) -> str:
    one, other = (
        f"{each / 1e6:,.0f}" if each > 1e8 else f"{each / 1e6:.3g}" for each in (few, many)
    )
    return one if one == other else f"{one} to {other}"


# ---- check


def run_check(given: argparse.Namespace) -> dict[str, Any]:
    links = {ranks: fits(ranks, SIZES) for ranks in given.ranks if ranks > 1}
    console.print(_links(links))
    results: dict[str, Any] = {}
    for name in given.names:
        arguments = [f"config=quickstart/{name}", *given.overrides]
        facts = with_config(f"quickstart/{name}", given.overrides) | measure(arguments, [2])
        method = Method.of(facts)
        table = Table(title=name, box=None, title_justify="left")
        for column in ("ranks", "computes ms", "messages ms", "predicted", "measured", "off"):
            table.add_column(column, justify="right")
        results[name] = {}
        for ranks in given.ranks:
            row = _checked(arguments, method, ranks, links.get(ranks, {}), given)
            results[name][ranks] = row
            off = row["predicted"] / row["measured"] - 1
            table.add_row(str(ranks), *(f"{1e3 * v:.1f}" for v in row.values()), f"{off:+.0%}")
        console.print(table)
    return results


def _checked(
    arguments: Sequence[str],
    method: Method,
    ranks: int,
    links: Mapping[str, Fit],
    given: argparse.Namespace,
) -> dict[str, float]:
    """Rounds take turns, and of each the fastest counts: the one that others disturbed least."""
    alone, together = [], []
    for _ in range(given.rounds):
        alone.append(step_seconds(arguments, ranks, given.steps, group=False))
        together.append(step_seconds(arguments, ranks, given.steps, group=True))
    compute, measured = min(alone), min(together)
    waits = sum(
        each.times * links[each.kind].seconds(each.size(method.images))
        for each in method.messages
        if links
    )
    return {
        "compute": compute,
        "messages": waits,
        "predicted": compute + waits,
        "measured": measured,
    }


def _links(links: Mapping[int, Mapping[str, Fit]]) -> Table:
    table = Table(title="gloo here, fitted", box=None, title_justify="left")
    for column in ("ranks", "collective", "alpha us", "beta MB/s"):
        table.add_column(column, justify="left" if column == "collective" else "right")
    for ranks, kinds in links.items():
        for kind, fit in kinds.items():
            table.add_row(str(ranks), kind, f"{1e6 * fit.alpha:.0f}", f"{fit.beta / 1e6:,.0f}")
    return table


# ---- the command


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--file", type=Path, default=MEASURED, help="what was measured")
    made.add_argument("--json", type=Path, help="write the results there too")
    commands = made.add_subparsers(required=True)
    one = commands.add_parser("measure", help="messages, operations and memory of a step")
    one.add_argument("configs", nargs="+")
    one.add_argument("--ranks", type=int, nargs="+", default=[2])
    one.add_argument("--set", dest="overrides", nargs="+", default=[])
    one.set_defaults(run=run_measure)
    for verb, run in (("predict", run_predict), ("messages", run_messages)):
        one = commands.add_parser(verb)
        one.add_argument("names", nargs="*", help="a part of a config's name")
        one.add_argument("--gpus", type=int, nargs="+", default=list(GPUS))
        one.set_defaults(run=run)
        if verb == "predict":
            _add_assumptions(one)
    one = commands.add_parser("table", help="for docs/distributed.md")
    one.set_defaults(run=run_table, names=[])
    one = commands.add_parser("check", help="against runs on this machine")
    one.add_argument("names", nargs="+", help="quickstarts")
    one.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    one.add_argument("--rounds", type=int, default=3)
    one.add_argument("--steps", type=int, default=15)
    one.add_argument("--set", dest="overrides", nargs="+", default=[])
    one.set_defaults(run=run_check)
    return made


def _add_assumptions(one: argparse.ArgumentParser) -> None:
    one.add_argument("--machine", choices=MACHINES, default="h100")
    one.add_argument("--sharding", choices=("ddp", "zero", "fsdp"), default="ddp")
    one.add_argument("--compute-ms", type=float, help="of a step, measured on one GPU")
    one.add_argument("--gpus-per-node", type=int)
    for name in (
        "node-us", "node-gbs", "network-us", "network-gbs", "memory-gb", "tflops", "utilisation",
        "overlap", "disk-gbs", "storage-gbs",
    ):  # fmt: skip
        one.add_argument(f"--{name}", type=float)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    results = given.run(given)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
