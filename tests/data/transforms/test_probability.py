import pytest

from sslengine.data.transforms.probability import probability


def test_a_probability_is_one() -> None:
    assert [probability(p) for p in (0.0, 0.3, 1.0)] == [0.0, 0.3, 1.0]
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=f"between 0 and 1; got {wrong}"):
            probability(wrong)
