from __future__ import annotations

import yaml

from sslengine.config.resolve import resolve_dict
from sslengine.config.show import show
from tests.config.recipes import recipe, resolved


def test_what_is_shown_is_yaml_that_gives_the_same_config() -> None:
    run = resolved(DISTRIBUTED__BACKEND="nccl")
    shown = yaml.safe_load(show(run))
    assert shown["engine_name"] == "train"
    assert resolve_dict(shown["config"]).config == run.config


def test_each_changed_value_has_its_origin_beside_it() -> None:
    lines = show(resolved(DISTRIBUTED__BACKEND="nccl", SEED_VALUE=3)).splitlines()

    def line(key: str) -> str:
        return next(each for each in lines if each.strip().startswith(f"{key}:"))

    assert line("SEED_VALUE").endswith("# the given dict")
    # Two other sections have a BACKEND.
    (backend,) = [each for each in lines if each.endswith("# derived: nccl needs GPUs")]
    assert backend.split("#")[0].strip() == "BACKEND: gloo"
    assert line("VERBOSE").strip() == "VERBOSE: false"


def test_a_value_set_inside_a_list_is_told_at_the_list() -> None:
    from sslengine.config.compose import Assignment, Composition, Layer
    from sslengine.config.resolve import freeze

    path = "config.DATA.TRAIN.TRANSFORMS.1.size"
    run = freeze(
        Composition([Layer("a.yaml", {"config": recipe()})], [Assignment(path, 9, "")], "x")
    )
    (line,) = [each for each in show(run).splitlines() if "TRANSFORMS:" in each and "#" in each]
    assert line.endswith("# command line")
