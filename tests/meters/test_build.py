from sslengine.meters.build import build_meters
from sslengine.meters.options import MetersOptions


def test_meters_by_name_with_their_arguments() -> None:
    options = MetersOptions(names=["accuracy_list_meter"])
    options.accuracy_list_meter = {"topk_values": [1, 5]}
    (meter,) = build_meters(options)
    assert meter.topk_values == [1, 5]


def test_no_names_no_meters() -> None:
    assert build_meters(MetersOptions()) == []
