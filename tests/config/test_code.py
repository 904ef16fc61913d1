from __future__ import annotations

from sslengine.config.code import code_named_in


def test_plugins_and_dotted_paths_wherever_they_stand() -> None:
    tree = {
        "PLUGINS": ["my_plugin"],
        "HOOKS": {"EXTRA": [{"name": "mine:Hook"}, "known_hook"]},
        "LOSS": {"name": "pkg.losses:Mine", "pkg.losses:Mine": {"t": 0.1}},
        "DATA": {"DATA_PATHS": ["s3://bucket/x", "C:/images", "a b:c"], "ratio": 3},
    }
    assert list(code_named_in(tree)) == [
        "config.PLUGINS: my_plugin",
        "config.HOOKS.EXTRA.0.name: mine:Hook",
        "config.LOSS.name: pkg.losses:Mine",
        "config.LOSS: pkg.losses:Mine",
    ]


def test_a_config_of_names_alone_names_none() -> None:
    assert list(code_named_in({"PLUGINS": [], "LOSS": {"name": "simclr_info_nce_loss"}})) == []
