from sslengine.engines.options import ExtractFeaturesOptions


def test_features_by_image_name_are_refused() -> None:
    assert list(ExtractFeaturesOptions().check()) == []
    (problem,) = ExtractFeaturesOptions(MAP_FEATURES_TO_IMG_NAME=True).check()
    assert problem.startswith("MAP_FEATURES_TO_IMG_NAME: not available yet")
