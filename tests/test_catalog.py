from sslengine import (
    catalog,  # noqa: F401
    registry,
)
from sslengine.registry import Registry


def test_every_declared_name_is_there_when_it_is_asked_for() -> None:
    registries = [each for each in vars(registry).values() if isinstance(each, Registry)]
    assert len(registries) == 19
    for each in registries:
        for name in each.names():
            assert each.get(name) is not None
