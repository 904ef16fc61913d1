from sslengine.meters.options import MetersOptions


def test_a_mask_of_outputs_is_refused() -> None:
    assert list(MetersOptions().check()) == []
    (problem,) = MetersOptions(model_output_mask=True).check()
    assert problem.startswith("model_output_mask: not available yet")
