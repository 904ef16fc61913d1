"""The table of methods: what is read from a run's folder, what is done again, what is written."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sslengine.config.resolve import resolve
from sslengine.evaluation.versions import VERSIONS
from tools import methods_runs, methods_table
from tools.methods_runs import Budget, Cost, Job, Row, Scores, cost_of, scores_of
from tools.methods_table import BEGIN, BEGINS, END, Measured, table, write_table

SIMCLR = Row("simclr")
ABOUT = {"versions": dict(VERSIONS)}


def _measured(
    *knn: float, cost: Cost | None = None, trunk: str = "ResNet", first: int = 1
) -> dict[str, Any]:
    scores = {
        str(seed): asdict(Scores(value, 50.0, 30.0, 40.0, linear_version=VERSIONS["linear"]))
        for seed, value in enumerate(knn, first)
    }
    budget = {"trunk": trunk, "steps": 624, "images_seen": 79_872}
    return {"scores": scores, "cost": cost and asdict(cost), **budget}


class _Runs:
    """In the place of the command: writes what a run would write."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def __call__(self, job: Job, more: list[str]) -> float:
        self.calls.append((job.row.name, [*job.row.overrides, *more]))
        job.folder.mkdir(parents=True, exist_ok=True)
        if "+config/benchmark/frozen=shapes" in more:
            scores = [
                {"features": "trained", "knn": {"20": 81.0}, "linear": 85.0, "about": ABOUT},
                {"features": "untrained", "knn": {"20": 30.0}, "linear": 40.0},
            ]
            report = {"network": "teacher", "scores": scores}
            (job.folder / "evaluation.json").write_text(json.dumps(report))
        else:
            speeds = (1.0, 100.0, 400.0, 200.0)
            lines = [{"kind": "step", "images_per_s": speed} for speed in speeds]
            lines.append({"kind": "phase", "loss": 1.0})
            text = "\n".join(json.dumps(line) for line in lines)
            (job.folder / "metrics.jsonl").write_text(text)
            config = {"config": {"DATA": {"TRAIN": {"BATCHSIZE_PER_REPLICA": 50}}}}
            (job.folder / "config.yaml").write_text(json.dumps(config))
        return 700.0


def test_a_run_is_trained_judged_and_never_done_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = _Runs()
    monkeypatch.setattr(methods_runs, "call", runs)
    job = Job(SIMCLR, 3, tmp_path / "simclr_seed3")
    first = scores_of(job)
    current = VERSIONS["linear"]
    assert first == Scores(81.0, 85.0, 30.0, 40.0, "teacher", linear_version=current)
    assert [bool(more) for _, more in runs.calls] == [False, True]
    assert scores_of(job) == first
    assert len(runs.calls) == 2


def test_the_cost_is_of_a_short_run_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = _Runs()
    monkeypatch.setattr(methods_runs, "call", runs)
    # Without the first entry the median speed is 200 images a second: 50 of them take 250 ms.
    assert cost_of(SIMCLR, tmp_path) == Cost(batch=50, step_ms=250.0, memory_mib=700.0)
    assert runs.calls == [("simclr", ["config.OPTIMIZER.num_epochs=2", "config.LOG_FREQUENCY=5"])]


def test_scores_of_an_earlier_probe_are_marked() -> None:
    rows = {"old": _measured(60.0, 70.0), "new": _measured(50.0)}
    del rows["old"]["scores"]["1"]["linear_version"]  # before it was recorded
    new, old = table(rows).splitlines()[4:]
    assert "| 50.0 (50.0 to 50.0) † |" in old
    assert "†" not in new


def test_what_is_measured_is_kept_until_the_config_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = _Runs()
    monkeypatch.setattr(methods_runs, "call", runs)
    doc = tmp_path / "methods.md"
    doc.write_text(f"{BEGIN}{END}")
    call = [
        "simclr", "--seeds", "0", "1", "--folder", f"{tmp_path}/runs", "--doc", str(doc),
        "--measured", f"{tmp_path}/methods.json",
    ]  # fmt: skip
    monkeypatch.setattr(methods_table, "code_commit", lambda: "abc")
    assert methods_table.main(call) == 0
    row = "| simclr | 624 | 79,872 | teacher | 1 | 81.0 | 85.0 | 30.0 | 40.0 |"
    assert f"{row} 50 | 250 | 700 | abc |" in doc.read_text()
    made = len(runs.calls)
    assert made == 5  # two seeds trained and judged, and the cost
    assert methods_table.main(call) == 0
    assert len(runs.calls) == made
    monkeypatch.setattr(methods_table, "digest", lambda config, overrides: "another")
    assert Measured(tmp_path / "methods.json").of(SIMCLR)["scores"] == {}


def test_what_a_config_says_counts_wherever_it_says_so(tmp_path: Path) -> None:
    def digest(name: str, text: str) -> str:
        file = tmp_path / f"{name}.yaml"
        file.write_text(f"# @package _global_\n{text}")
        return methods_runs.digest(file)

    one = digest("one", "config: {SEED_VALUE: 1, VERBOSE: True}\n")
    assert one == digest("same", "# a comment\nconfig:\n  VERBOSE:   True\n  SEED_VALUE: 1\n")
    assert one != digest("other", "config: {SEED_VALUE: 2, VERBOSE: True}\n")
    base = digest("base", "config: {VERBOSE: True, SEED_VALUE: 0}\n")
    on_it = digest("on_it", "defaults: [/config/base, _self_]\nconfig: {SEED_VALUE: 1}\n")
    assert one == on_it != base


def test_the_measured_rows_are_those_of_the_configs_as_they_are() -> None:
    measured = Measured(methods_table.MEASURED)
    assert {row.key for row in measured.rows()} == set(json.loads(measured.path.read_text()))


@pytest.mark.parametrize("images", BEGINS)
def test_the_tables_of_the_page_are_those_of_the_measured_rows(images: str) -> None:
    measured = Measured(methods_table.MEASURED)
    _, _, rest = methods_table.DOC.read_text(encoding="utf-8").partition(BEGINS[images])
    found, _, _ = rest.partition(END)
    assert found.strip() == table({row.name: measured.of(row) for row in measured.rows(images)})


def test_a_run_that_was_stopped_before_it_was_judged_is_only_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = _Runs()
    monkeypatch.setattr(methods_runs, "call", runs)
    job = Job(SIMCLR, 0, tmp_path / "run")
    scores_of(job)
    (job.folder / "evaluation.json").unlink()
    scores_of(job)
    assert [more for _, more in runs.calls] == [
        [], ["+config/benchmark/frozen=shapes"], ["+config/benchmark/frozen=shapes"],
    ]  # fmt: skip


@pytest.mark.slow
def test_the_real_command_takes_the_folder_of_a_job(tmp_path: Path) -> None:
    job = Job(Row("simclr"), 0, tmp_path / "simclr_seed0")
    methods_runs.call(job, ["config.DATA.TRAIN.DATA_LIMIT=128", "config.OPTIMIZER.num_epochs=1"])
    assert (job.folder / "checkpoints" / "checkpoint.torch").exists()


def test_a_table_for_each_kind_of_trunk_in_order_of_names() -> None:
    cost = Cost(batch=128, step_ms=250.4, memory_mib=512.3)
    rows = {
        "b": _measured(80.0, 82.0, cost=cost),
        "c": _measured(90.0, trunk="ViT"),
        "a": _measured(50.0),
    }
    lines = table(rows).splitlines()
    scores = "81.0 (80.0 to 82.0) | 50.0 (50.0 to 50.0) | 30.0 | 40.0"
    budget = "624 | 79,872"
    assert lines[0] == "ResNet:"
    assert (
        lines[4]
        == f"| a | {budget} | model | 1 | 50.0 | 50.0 | 30.0 | 40.0 |  |  |  | not recorded |"
    )
    assert (
        lines[5] == f"| b | {budget} | model | 1, 2 | {scores} | 128 | 250 | 512 | not recorded |"
    )
    assert lines[7] == "ViT:"
    assert lines[11] == f"| c | {budget} | model | 1 | 90.0 | 50.0 | 30.0 | 40.0 | not recorded |"


def test_a_seed_that_hyper_parameters_were_chosen_on_is_not_in_the_mean() -> None:
    both, alone = _measured(10.0, 70.0, 80.0, first=0), _measured(10.0, first=0)
    assert "| 1, 2 | 75.0 (70.0 to 80.0) |" in table({"a": both})
    assert "| 0 ‡ | 10.0 |" in table({"a": alone})


@pytest.mark.parametrize(
    ("row", "trunk", "steps", "images_seen"),
    [
        (SIMCLR, "ResNet", 16 * (5_000 // 128), 16 * (5_000 // 128) * 128),
        (Row("dinov2", images="fashion"), "ViT", 2_496, 2_496 * 64),
        (Row("dinov2", "twice", ("config.OPTIMIZER.num_iterations=4992",)), "ViT", 4_992, 4_992 * 64),
    ],
)  # fmt: skip
def test_a_row_knows_its_steps_and_images(
    row: Row, trunk: str, steps: int, images_seen: int
) -> None:
    assert row.budget() == Budget(trunk, steps, images_seen)


def test_what_was_trained_on_other_images_says_so() -> None:
    """In the row itself: of the quickstarts this is RotNet."""
    other = {**_measured(50.0), "trained_on": ["upright_shapes"]}
    assert "| a (trained on `upright_shapes`) | 624 | 79,872 | model | 1 |" in table({"a": other})
    measured = Measured(Path("none yet"))
    assert measured.of(Row("rotnet"))["trained_on"] == ["upright_shapes"]
    assert measured.of(SIMCLR)["trained_on"] == ["shapes"]


def _call(folder: Path, *more: str) -> list[str]:
    doc = folder / "methods.md"
    if not doc.exists():
        doc.write_text(f"{BEGIN}{END}")
    return ["simclr", "--seeds", "0", "--folder", f"{folder}/runs", "--doc", str(doc),
            "--measured", f"{folder}/methods.json", *more]  # fmt: skip


def test_rows_of_other_code_say_so_and_are_measured_again_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = _Runs()
    monkeypatch.setattr(methods_runs, "call", runs)
    for code, more, made in (
        ("old", [], 3), ("new", [], 3), ("new", ["--again"], 6), ("new", ["--again"], 6)
    ):  # fmt: skip
        monkeypatch.setattr(methods_table, "code_commit", lambda code=code: code)
        assert methods_table.main(_call(tmp_path, *more)) == 0
        assert len(runs.calls) == made
        shown = "old" if made == 3 else "new"
        assert f"| 700 | {shown} |" in (tmp_path / "methods.md").read_text()
    # A run that the old code has begun is not resumed by the new.
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"old", "new"}


def test_code_that_changes_meanwhile_is_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods_runs, "call", _Runs())
    commits = iter(["old", "old", "new"])
    monkeypatch.setattr(methods_table, "code_commit", lambda: next(commits))
    with pytest.raises(SystemExit, match="changed from old to new"):
        methods_table.main([*_call(tmp_path), "--seeds", "0", "1"])
    (only,) = json.loads((tmp_path / "methods.json").read_text())["simclr"]["scores"].items()
    assert only[0] == "0"


def test_a_variant_is_a_row_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = _Runs()
    monkeypatch.setattr(methods_runs, "call", runs)
    monkeypatch.setattr(methods_table, "code_commit", lambda: "abc")
    methods_table.main(_call(tmp_path))
    assert {name for name, _ in runs.calls} == {"simclr"}
    variant = ["--variant", "views apart: config.MODEL.VIEWS_APART=true config.SEED=1"]
    methods_table.main(_call(tmp_path, *variant))
    name, overrides = runs.calls[3]
    assert name == "simclr, views apart"
    assert overrides == ["config.MODEL.VIEWS_APART=true", "config.SEED=1"]
    for _ in range(2):  # and stays when the others are measured
        text = (tmp_path / "methods.md").read_text()
        assert "| simclr | 624 | 79,872 | teacher | 0 ‡ |" in text
        assert "| simclr, views apart | 624 | 79,872 | teacher | 0 ‡ |" in text
        methods_table.main(_call(tmp_path))
    assert len(runs.calls) == 6


def test_the_commit_is_the_last_that_changed_the_code(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        names = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *names, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(path: str, text: str) -> str:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
        git("add", "-A")
        git("commit", "-qm", path)
        return git("rev-parse", "HEAD")

    assert methods_table.code_commit(tmp_path) == "unknown"
    git("init", "-q")
    code = commit("sslengine/a.py", "1")
    commit("docs/methods.json", "{}")
    assert code.startswith(methods_table.code_commit(tmp_path))
    (tmp_path / "docs" / "methods.json").write_text("{1}")  # the table itself, half made
    assert code.startswith(methods_table.code_commit(tmp_path))
    (tmp_path / "sslengine" / "a.py").write_text("2")
    assert methods_table.code_commit(tmp_path) == f"{code[:9]}+changes"


def test_the_document_keeps_what_stands_around_the_table(tmp_path: Path) -> None:
    doc = tmp_path / "methods.md"
    doc.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_table("new", doc)
    write_table("newer", doc)
    assert doc.read_text() == f"before\n{BEGIN}\n\nnewer\n\n{END}\nafter\n"


def test_other_images_a_probe_that_attends_and_fine_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a table of their own, with columns for what was measured."""
    calls: list[list[str]] = []

    def run(job: Job, more: list[str]) -> float:
        calls.append([*job.overrides, *more])
        if any("sweep=attentive" in each for each in more):
            for start, value in (("trained", 70.0), ("untrained", 60.0)):
                folder = job.folder / "sweep" / f"attentive-{start}-0123"
                folder.mkdir(parents=True)
                row = {"features": start, "metrics": {"top_1": value}}
                (folder / "swept.json").write_text(json.dumps(row))
            report = job.folder / "evaluation.json"
            if not report.exists():
                report.write_text(json.dumps({"finetuned": [], "swept": []}))
        elif any("benchmark/finetune" in each for each in more):
            report = json.loads((job.folder / "evaluation.json").read_text())
            tuned = (("trained", 75.0), ("untrained", 72.0))
            report["finetuned"] = [{"features": f, "metrics": {"top_1": v}} for f, v in tuned]
            (job.folder / "evaluation.json").write_text(json.dumps(report))
        elif more:
            rows = (("trained", 81.0), ("untrained", 30.0), ("raw pixels", 50.0))
            scores = [
                {"features": name, "knn": {"20": v}, "linear": v + 1, "about": ABOUT}
                for name, v in rows
            ]
            report = {"network": "model", "scores": scores}
            (job.folder / "evaluation.json").write_text(json.dumps(report))
        job.folder.mkdir(parents=True, exist_ok=True)
        return 0.0

    monkeypatch.setattr(methods_runs, "call", run)
    monkeypatch.setattr(methods_table, "code_commit", lambda: "abc")
    doc = tmp_path / "methods.md"
    doc.write_text(f"{BEGIN}{END}{BEGINS['fashion']}{END}")
    arguments = [*_call(tmp_path), "--images", "fashion"]
    methods_table.main(arguments)
    assert "attentive" not in doc.read_text()
    methods_table.main([*arguments, "--attentive"])
    text = doc.read_text()
    assert (
        "| simclr | 624 | 79,872 | model | 0 ‡ | 81.0 | 82.0 | 70.0 | 30.0 | 31.0 | 60.0 | 50.0 | 51.0 | abc |"
        in text
    )
    assert text.startswith(f"{BEGIN}{END}")
    trained, judged, _ = calls
    assert "config.DATA.TRAIN.DATA_SOURCES=[array_file]" in trained
    assert "config.OPTIMIZER.num_iterations=624" in trained  # 16 epochs of 5,000 images by 128
    assert "config.DATA.TRAIN.DATA_LIMIT=10000" in judged
    methods_table.main([*arguments, "--attentive"])
    assert len(calls) == 3
    assert Measured(tmp_path / "methods.json").rows("shapes") == []
    assert Measured(tmp_path / "methods.json").rows() == [Row("simclr", images="fashion")]
    doc.write_text(f"{BEGIN}{END}{BEGINS['fashion']}{END}")
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "methods.json").unlink()
    methods_table.main([*arguments, "--attentive"])  # all at once
    assert doc.read_text() == text
    methods_table.main([*arguments, "--attentive", "--fine-tuned"])
    methods_table.main([*arguments, "--attentive", "--fine-tuned"])
    assert (
        "| simclr | 624 | 79,872 | model | 0 ‡ | 81.0 | 82.0 | 70.0 | 75.0 | 30.0 | 31.0 | 60.0 | 72.0 | 50.0 "
        "| 51.0 | abc |" in doc.read_text()
    )
    assert len(calls) == 7


@pytest.mark.slow
@pytest.mark.parametrize("images", ["shapes", "fashion", "emoji"])
def test_the_real_commands_are_understood(images: str, tmp_path: Path) -> None:
    """Training, judging and probing of a recipe with several inputs, resolved and checked."""
    job = Job(Row("dinov2", images=images), 0, tmp_path)
    resolve(job.overrides)
    for more in (job.row.judging(), job.row.attentive(), job.row.fine_tuned()):
        resolve([*job.judged.overrides, *more])


def test_a_variant_of_the_data_is_judged_as_others(tmp_path: Path) -> None:
    changed = "config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS.patch_size=8"
    head = "config.MODEL.HEAD.PARAMS.0.1.in_dim=96"
    trunk = "config.MODEL.TRUNK.VISION_TRANSFORMERS.PATCH_SIZE=8"
    row = Row("ijepa", "larger patches", (changed, head, trunk), "fashion")
    job = Job(row, 0, tmp_path)
    assert {changed, head, trunk} < set(job.overrides)
    config = resolve([*job.judged.overrides, *row.attentive()]).config
    assert config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS == {}
    assert config.MODEL.HEAD.PARAMS[0][0] == "mlp"  # the heads of the sweep take its place
    assert config.MODEL.TRUNK.VISION_TRANSFORMERS.PATCH_SIZE == 8
