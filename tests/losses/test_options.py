from sslengine.losses.options import LossOptions


def test_a_run_needs_a_loss() -> None:
    assert list(LossOptions().check()) == []
    (problem,) = LossOptions(name="").check()
    assert problem.startswith("name: ")
