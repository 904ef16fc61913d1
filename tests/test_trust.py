from __future__ import annotations

import dataclasses
import multiprocessing
import pickle
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import torch

from sslengine import trust
from sslengine.data.loading.loader import prepare_worker
from sslengine.errors import ConfigError, UntrustedError
from sslengine.launch.rank import run_rank
from sslengine.models.weights.read import TRUST_PICKLE, read_weights
from sslengine.registry import ENGINES, LOSSES, TRANSFORMS, Registry, import_dotted, load_plugins
from sslengine.trust import Opened, closed, expect_trust
from tests.config.recipes import resolved

RUN = Opened("run/config.yaml")


def test_closed_until_the_block_ends_however_it_ends() -> None:
    expect_trust("anything")
    with pytest.raises(UntrustedError) as told, closed(RUN):
        expect_trust("'os:system' would be run", "config.LOSS.name")
    assert not trust.is_closed()
    assert str(told.value) == (
        "run/config.yaml: config.LOSS.name: 'os:system' would be run. Refused, nothing was run: "
        "the file may come from anyone. If you trust it: --trust-config (in Python "
        "trust_config=True)."
    )


def test_what_the_user_typed_is_his_own() -> None:
    with closed(Opened("run", frozenset({"config.LOSS.name", "mine:Loss"}))):
        expect_trust("it would be run", "", "mine:Loss")
        with pytest.raises(UntrustedError), closed(RUN):  # beside another run: not for that one
            expect_trust("it would be run", "", "mine:Loss")
        with pytest.raises(UntrustedError):
            expect_trust("it would be run", "", "other:Loss")


def test_blocks_that_overlap_in_threads() -> None:
    """Whichever ends first, the switch is closed until the last one has ended."""
    one, two = closed(RUN), closed(RUN)
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert trust.is_closed()
    two.__exit__(None, None, None)
    assert not trust.is_closed()


def test_a_thread_that_is_started_meanwhile_is_bound() -> None:
    seen: list[bool] = []
    with closed(RUN):
        thread = threading.Thread(target=lambda: seen.append(trust.is_closed()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_the_current_folder_is_searched_for_what_is_typed_or_trusted_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    installed = [each for each in sys.path if each]

    def path_after(opened: Opened | None, name: str) -> list[str]:
        monkeypatch.setattr(sys, "path", [*installed])
        with closed(opened), pytest.raises(ConfigError):
            load_plugins([name])
        return sys.path

    assert path_after(RUN, "not_there") == installed
    assert path_after(None, "not_there") == ["", *installed]
    typed = Opened("run", frozenset({"not_there"}))
    assert path_after(typed, "not_there") == [*installed, ""]
    monkeypatch.setattr(sys, "path", [*installed])
    with closed(RUN):
        load_plugins(["pickle"])  # which is imported
    assert sys.path == installed
    here = [*installed, str(tmp_path.resolve())]
    monkeypatch.setattr(sys, "path", [*here])
    trust.search_current_folder()
    assert sys.path == here


def test_names_that_ship_and_names_that_are_registered_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry: Registry[object] = Registry("thing")
    registry.declare("sslengine.methods.simclr", "later")

    @registry.register("mine")
    class Mine:
        pass

    with closed(RUN):
        assert LOSSES.get("simclr_info_nce_loss").__module__ == "sslengine.methods.simclr"
        assert LOSSES.get("CrossEntropyLoss") is torch.nn.CrossEntropyLoss
        assert TRANSFORMS.get("CenterCrop") is not None
        name = LOSSES.get("simclr_info_nce_loss").__name__
        assert LOSSES.get(f"sslengine.methods.simclr:{name}") is LOSSES.get("simclr_info_nce_loss")
        assert registry.get("mine") is Mine
        monkeypatch.setattr(sys.modules[__name__], "Mine", Mine, raising=False)
        assert registry.get(f"{__name__}:Mine") is Mine


@pytest.mark.parametrize(
    "path",
    [
        "os:system", "os:getcwd", "builtins:eval", "sslengine.registry:import_dotted",
        "sslengine.__main__:main", "torch:load", "torch.nn:CrossEntropyLoss",
        "augly.image:functional", "tests.test_trust:RUN", ":x", "os:",
    ],
)  # fmt: skip
def test_a_dotted_path_is_refused_even_to_what_is_imported_already(path: str) -> None:
    assert __name__ == "tests.test_trust"
    with closed(RUN):
        for registry in (LOSSES, TRANSFORMS):
            with pytest.raises(UntrustedError, match=r"run/config.yaml: config\.X: '"):
                registry.get(path, "config.X")
            with pytest.raises(UntrustedError):
                registry.options(path)
        if not path.startswith("sslengine."):
            with pytest.raises(UntrustedError):
                import_dotted(path)


def test_plugins_that_are_imported_already_need_no_trust() -> None:
    with closed(Opened("run", frozenset({"tests.typed"}))):
        load_plugins(["os", "tests.test_trust"])
        with pytest.raises(UntrustedError, match=r"config.PLUGINS.1: 'antigravity' names"):
            load_plugins(["os", "antigravity"])
        with pytest.raises(Exception, match=r"config.PLUGINS.0: importing 'tests.typed'"):
            load_plugins(["tests.typed"])
    assert "antigravity" not in sys.modules


def test_unpickling_asks(tmp_path: Path) -> None:
    path = tmp_path / "weights.torch"
    torch.save({"a": torch.ones(1)}, path)
    with closed(RUN):
        assert read_weights(path)["a"] == 1
        with pytest.raises(UntrustedError, match=f"{TRUST_PICKLE}: the code that .*weights.torch"):
            read_weights(path, trusted=True)
    with closed(Opened("run", frozenset({TRUST_PICKLE}))):
        assert read_weights(path, trusted=True)["a"] == 1


def _worker(opened: tuple[Opened, ...], answers: object) -> None:
    prepare_worker(0, multiprocessing.parent_process().pid, torch.zeros(1).long(), opened)  # type: ignore[union-attr]
    try:
        LOSSES.get("os:getcwd", "config.LOSS.name")
        answers.put("found")  # type: ignore[attr-defined]
    except UntrustedError as error:
        answers.put(str(error))  # type: ignore[attr-defined]


def test_a_loader_worker_is_told() -> None:
    """By its start: the server that it is forked from may be older than the switch's state."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    for opened, expected in (((RUN,), "run/config.yaml: config.LOSS.name: 'os:getcwd'"), ((), "f")):
        worker = context.Process(target=partial(_worker, opened, answers))
        worker.start()
        assert answers.get().startswith(expected)
        worker.join()


def test_a_rank_is_bound_by_its_config(tmp_path: Path) -> None:
    """As it reaches the rank: pickled."""
    seen: list[bool] = []
    engine = f"test_trust_{tmp_path.name}"
    ENGINES.register(engine)(lambda run: seen.append(trust.is_closed()))
    plain = resolved(CHECKPOINT__DIR=str(tmp_path))
    for opened in (RUN, None):
        sent = dataclasses.replace(plain, engine_name=engine, opened=opened)
        run_rank(pickle.loads(pickle.dumps(sent)), join=False)
    assert seen == [True, False]
    assert not trust.is_closed()


def test_an_address_among_the_arguments_of_a_library() -> None:
    """AugLy's overlays open it, and what it gives is kept where its path leads: `/../..`."""
    address = "https://example.org/../x.png"
    arguments = {"value": [{"overlay": address}]}
    with (
        closed(Opened("run")),
        pytest.raises(UntrustedError, match=r"A\.0: 'https://example.org/\."),
    ):
        TRANSFORMS.maker("RandomErasing", arguments, "A.0")
    with closed(Opened("run", frozenset({address}))):
        TRANSFORMS.maker("RandomErasing", arguments, "A.0")
    TRANSFORMS.maker("RandomErasing", arguments, "A.0")
