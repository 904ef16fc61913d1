"""Which augmentation back-end is the fastest that is installed, and which no longer exist."""

from __future__ import annotations

from importlib.util import find_spec

from sslengine.errors import listing, nearest

# The packages of the extra `[fast]`.
FAST_PACKAGES = ("numba", "simplejpeg")
FAST, ALWAYS_THERE = "numba", "pil"
# Back-ends of earlier versions, which left a part of the work to a GPU.
REMOVED = ("device", "device_jpeg")


def missing_packages() -> list[str]:
    return [name for name in FAST_PACKAGES if find_spec(name) is None]


def best_backend() -> str:
    """Return the back-end that DATA.AUGMENT_BACKEND: auto selects."""
    return ALWAYS_THERE if missing_packages() else FAST


def why_not(name: str) -> str:
    """Return why the back-end of this name cannot be used; "" if it can."""
    names = ("auto", FAST, ALWAYS_THERE)
    if name not in names:
        return f"expected {listing(names)}; got {name!r}. {nearest(name, names)}".rstrip()
    missing = missing_packages()
    if name == FAST and missing:
        return (
            f"{name} requires {' and '.join(missing)}: pip install 'sslengine[fast]'. Or choose "
            f"{ALWAYS_THERE}, which requires no other package."
        )
    return ""
