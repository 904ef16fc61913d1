"""Costs against rings and trees played out message by message; predictions against sums by hand."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "perf_measurement"))
import scaling  # noqa: E402
import scaling_cost as cost  # noqa: E402
import scaling_measure  # noqa: E402
import scaling_predict  # noqa: E402
from scaling_cost import Fabric, Link  # noqa: E402
from scaling_measure import Message  # noqa: E402

LINK = Link(alpha=2.0, beta=10.0)
NETWORK = Link(alpha=5.0, beta=4.0)
links = st.builds(Link, alpha=st.floats(0, 10), beta=st.floats(0.1, 100))


# ---- one kind of link: each rank's messages in turn, as they would be sent


def _ring_played_out(ranks: int, rounds: int, part: float, link: Link) -> float:
    """Every rank sends what it got in the round before, as soon as it has it; the last arrival."""
    ready = [0.0] * ranks
    for _ in range(rounds):
        ready = [
            max(ready[rank], ready[rank - 1]) + link.alpha + part / link.beta
            for rank in range(ranks)
        ]
    return max(ready)


@given(ranks=st.integers(1, 40), size=st.floats(0, 1e6), link=links)
def test_rings(ranks: int, size: float, link: Link) -> None:
    share = size / ranks
    there_and_back = _ring_played_out(ranks, 2 * (ranks - 1), share, link)
    assert cost.ring_all_reduce(ranks, size, link) == pytest.approx(
        there_and_back, rel=1e-9, abs=1e-9
    )
    once = _ring_played_out(ranks, ranks - 1, share, link)
    assert cost.ring_gather(ranks, share, link) == pytest.approx(once, rel=1e-9, abs=1e-9)


def _broadcast_played_out(ranks: int, link: Link) -> float:
    """Latency alone: whoever has it passes it on, to one at a time, until all have it."""
    have, now = 1, 0.0
    while have < ranks:
        have, now = 2 * have, now + link.alpha
    return now


@given(ranks=st.integers(1, 5000), link=links)
def test_trees(ranks: int, link: Link) -> None:
    latency = _broadcast_played_out(ranks, link)
    assert cost.tree_broadcast(ranks, 0.0, link) == pytest.approx(latency)
    assert cost.tree_all_reduce(ranks, 0.0, link) == pytest.approx(2 * latency)
    if ranks > 1:  # a stream of small parts: the links are as busy as the size says
        assert cost.tree_broadcast(ranks, 7.0, link) - latency == pytest.approx(
            7 / link.beta, rel=1e-6
        )


def test_the_faster_all_reduce_is_taken() -> None:
    assert cost.flat_all_reduce(64, 1.0, LINK) == cost.tree_all_reduce(64, 1.0, LINK)
    assert cost.flat_all_reduce(3, 1e6, LINK) == cost.ring_all_reduce(3, 1e6, LINK)


# ---- nodes of 4 ranks, by hand

FABRIC = Fabric(LINK, NETWORK, ranks_per_node=4)


def test_on_two_nodes() -> None:
    # Shares of 40: across 5 + 40 / 4, then 3 rounds within the node of the 80 that are there.
    assert cost.gather(8, 40.0, FABRIC) == pytest.approx(5 + 10 + 3 * (2 + 8))
    # 10 times 8 from each: 3 rounds of 10 to those of the node, then 40 to the other node.
    assert cost.all_to_all(8, 80.0, FABRIC) == pytest.approx(3 * (2 + 1) + 5 + 40 / 4)
    assert cost.broadcast(8, 40.0, FABRIC) == pytest.approx((5 + 10) + (2 * 2 + 4))
    # Scattered in parts of 2500, reduced across, gathered.
    expected = 2 * 3 * (2 + 2500 / 10) + 2 * (5 + 2500 / 2 / 4)
    assert cost.all_reduce(8, 10000.0, FABRIC) == pytest.approx(expected)
    # Nothing but latencies: up and down 2 levels within, 1 between.
    assert cost.all_reduce(8, 0.0, FABRIC) == pytest.approx(2 * 2 * 2 + 2 * 5)


@pytest.mark.parametrize("kind", cost.COSTS)
def test_one_rank_pays_nothing_and_more_never_pay_less(kind: str) -> None:
    assert cost.COSTS[kind](1, 100.0, FABRIC) == 0
    times = [cost.COSTS[kind](2**power, 100.0, FABRIC) for power in range(13)]
    if kind != "all_to_all":  # the same bytes in more and smaller parts
        assert all(one <= other for one, other in pairwise(times))
    assert cost.COSTS[kind](8, 200.0, FABRIC) > cost.COSTS[kind](8, 100.0, FABRIC)


def test_bytes_that_leave_a_rank() -> None:
    assert cost.sent_by_a_rank("all_reduce", 4, 100) == 150
    assert cost.sent_by_a_rank("gather", 4, 100) == 300
    assert cost.sent_by_a_rank("all_to_all", 4, 100) == 75


# ---- from messages to a step

GRADIENTS = Message("all_reduce", "gradients", 4000.0, 0.0, times=2)
FACTS: dict[str, Any] = {
    "images": 8, "amp": True, "flops_per_image": 10.0, "flops_per_pair": 0.5,
    "activations_per_image": 100.0, "sync_bn_group": 4,
    "parameters": 4000, "gradients": 4000, "optimizer": 8000, "teacher": 1000, "memory": 500,
    "messages": [
        list(GRADIENTS), ["gather", "simclr", 0.0, 16.0, 1],
        ["all_reduce", "sync_batchnorm", 40.0, 0.0, 2],
        ["all_reduce", scaling_predict.BACKWARD, 40.0, 0.0, 2],
    ],
}  # fmt: skip
MACHINE = scaling_predict.Machine(
    FABRIC, memory=1e6, flops=20.0, utilisation=0.5, overlap=0.5, copy=10.0, disk=1.0, storage=2.0
)
METHOD = scaling_predict.Method.of(FACTS)


def test_a_step_is_the_sum_of_its_parts() -> None:
    step = scaling_predict.predict(METHOD, 8, MACHINE)
    assert step.compute == pytest.approx((10 + 0.5 * 8 * 8) * 8 / 10)
    gradients = 2 * cost.all_reduce(8, 4000.0, FABRIC)
    assert step.waits["gradients"] == pytest.approx(gradients - step.compute / 2)
    assert step.waits["simclr"] == pytest.approx(cost.gather(8, 128.0, FABRIC))
    # Among 4 ranks, and on a GPU one message of twice the size for two.
    assert step.waits["sync_batchnorm"] == pytest.approx(cost.gather(4, 80.0, FABRIC))
    assert step.waits[scaling_predict.BACKWARD] == pytest.approx(cost.all_reduce(4, 80.0, FABRIC))
    assert step.seconds == pytest.approx(step.compute + sum(step.waits.values()))
    assert step.held["gathered"] == 128.0 * 8
    assert step.held["activations"] == 400
    assert step.memory == 4000 + 4000 + 8000 + 1000 + 500 + 400 + 1024
    assert step.copy == pytest.approx(13500 / 10)
    assert step.write == pytest.approx(13500)


def test_gradients_that_fit_beside_the_computation_cost_nothing() -> None:
    assert scaling_predict.predict(METHOD, 8, MACHINE, compute=1e9).waits["gradients"] == 0
    alone = scaling_predict.predict(METHOD, 1, MACHINE)
    assert alone.waits == {}


def test_ways_of_sharding() -> None:
    zero = scaling_predict.predict(METHOD, 8, MACHINE, "zero")
    assert zero.held["optimizer"] == 1000
    assert zero.held["parameters"] == 4000
    assert zero.waits["parameters"] == pytest.approx(cost.gather(8, 500.0, FABRIC))
    shards = scaling_predict.predict(METHOD, 8, MACHINE, "fsdp", compute=0.0)
    assert shards.held["parameters"] == shards.held["gradients"] == 500
    assert shards.held["memory"] == 500
    assert shards.waits["gradients"] == pytest.approx(3 * cost.gather(8, 500.0, FABRIC))
    assert shards.write == pytest.approx((500 + 1000 + 125 + 500) * 8 / 2)


def test_what_breaks_first() -> None:
    roomy = scaling_predict.breaks_first(METHOD, MACHINE, compute=1e9)
    assert roomy == "nothing up to 4096"
    tight = scaling_predict.Machine(FABRIC, memory=100e3, flops=1.0)
    # 17900 and 128 a rank: 100 kB are passed between 512 and 1024.
    assert scaling_predict.breaks_first(METHOD, tight, compute=1e9).startswith(
        "memory at 1024: gathered"
    )
    slow = scaling_predict.breaks_first(METHOD, MACHINE, compute=4000.0)
    assert slow.startswith("messages at ")
    assert "simclr" in slow


# ---- what is measured


def test_messages_that_depend_on_the_batch() -> None:
    few = [["gather", "a", 64], ["all_reduce", "b", 100], ["all_reduce", "b", 100]]
    more = [["gather", "a", 128], ["all_reduce", "b", 100], ["all_reduce", "b", 100]]
    assert scaling_measure.with_batch(few, more) == [
        Message("gather", "a", 0.0, 64.0), Message("all_reduce", "b", 100.0, 0.0, 2)
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="depend on the batch"):
        scaling_measure.with_batch(few, more[:2])


def test_a_line_is_found_again() -> None:
    points = [(size, 3e-4 + size / 2e9) for size in (1e2, 1e4, 1e6, 1e8)]
    found = scaling_measure.fit(points)
    assert found.alpha == pytest.approx(3e-4)
    assert found.beta == pytest.approx(2e9)
    assert found.seconds(2e9) == pytest.approx(1.0003)


TINY = (
    "config.MODEL.TRUNK.RESNETS.WIDTH_MULTIPLIER=0.0625",
    "config.MODEL.HEAD.PARAMS=[[mlp,{dims:[32,8]}]]",
)


@pytest.mark.slow
def test_a_step_of_the_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its messages on 2 and 4 ranks, then a prediction from them."""
    file = tmp_path / "scaling.json"
    command = ["--file", str(file)]
    scaling.main([*command, "measure", "quickstart/simclr", "--ranks", "2", "4", "--set", *TINY])
    facts = json.loads(file.read_text())["quickstart/simclr"]
    messages = [Message(*each) for each in facts["messages"]]
    (gathered,) = [each for each in messages if each.kind == "gather"]
    assert gathered == Message("gather", "simclr", 0.0, 2 * 8 * 4)  # 2 views, 8 numbers of 4 bytes
    gradients = sum(each.fixed * each.times for each in messages if each.of == "gradients")
    assert gradients == facts["parameters"]
    # A similarity of 8 products, each way twice over, for 2 x 2 views of a pair of images.
    assert facts["flops_per_pair"] == 4 * 3 * 2 * 8
    scaling.main([*command, "--json", str(tmp_path / "out.json"), "predict"])
    scaling.main([*command, "messages"])
    assert "4,096" in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text())["quickstart/simclr"]["steps"]["4096"]


@pytest.mark.slow
def test_the_check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "SIZES", [256, 65536])
    few = ["--rounds", "1", "--steps", "2", "--ranks", "1", "2", "--set", *TINY]
    scaling.main(["check", "simclr", *few])
    assert "predicted" in capsys.readouterr().out


def test_every_shipped_pretraining_is_measured_and_predicted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shipped = {
        path.relative_to(ROOT / "configs").with_suffix("").as_posix()
        for path in (ROOT / "configs" / "pretrain").rglob("*.yaml")
    }
    assert set(json.loads(scaling.MEASURED.read_text())) == shipped
    scaling.main(["predict"])
    printed = capsys.readouterr().out
    assert printed.count("breaks first") == len(shipped)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--node-us", "9"], "in a node 9 us + 360 GB/s"),
        (["--machine", "a100", "--network-gbs", "5"], "between nodes 8 us + 5 GB/s"),
        (["--compute-ms", "180"], "computation: 180 ms, as given"),
        (["--utilisation", "0.4", "--tflops", "100"], "at 40 % of 100 TFLOP/s"),
        (["--memory-gb", "141", "--disk-gbs", "3"], "141 GB a GPU"),
    ],
)
def test_assumptions_are_options_and_are_printed(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scaling.json"
    file.write_text(json.dumps({"pretrain/mine": FACTS}))
    scaling.main(["--file", str(file), "predict", "mine", *options])
    assert told in " ".join(capsys.readouterr().out.split())


def test_a_name_that_was_not_measured(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="measure something first"):
        scaling.main(["--file", str(tmp_path / "none.json"), "predict"])
    (tmp_path / "some.json").write_text(json.dumps({"pretrain/mine": FACTS}))
    with pytest.raises(SystemExit, match="has nothing like simcrl; it has pretrain/mine"):
        scaling.main(["--file", str(tmp_path / "some.json"), "predict", "simcrl"])
