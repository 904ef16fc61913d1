from sslengine.losses.options import LossOptions
from tests.config.recipes import resolved


def test_it_is_supervised_unless_told() -> None:
    assert LossOptions().name == "CrossEntropyLoss"


def test_a_key_that_vissl_never_read_is_told() -> None:
    run = resolved(LOSS={"name": "CrossEntropyLoss", "ignore_index": -1})
    (warning,) = run.warnings
    assert warning.startswith("config.LOSS.ignore_index has no effect: set it in the section")
