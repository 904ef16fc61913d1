import pytest

from sslengine.errors import ConfigError, listing, nearest, readable


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("temprature", ["momentum", "temperature"], "'temperature'"),
        ("trunk", ["TRUNK", "HEAD"], "'TRUNK'"),  # in any case
        ("tyni", ["large", "tiny"], "'tiny'"),  # letters are swapped
        ("simclr", ["simclr_info_nce_loss"], "'simclr_info_nce_loss'"),  # a part
        ("qqqq", ["momentum", "temperature"], ""),
    ],
)
def test_the_nearest_name(name: str, known: list[str], found: str) -> None:
    assert nearest(name, known) == (f"Did you mean {found}?" if found else "")


def test_listing_is_sorted_and_cut() -> None:
    assert listing(["b", "a"]) == "a, b"
    assert listing([f"n{i:02d}" for i in range(40)], limit=2) == "n00, n01, ... (40 in all)"


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert readable("dog 1 é 漢 ñ.png") == "dog 1 é 漢 ñ.png"
    assert readable("\x1b[2J\r\n\x00\x7f\x9b\u202e\udce9") == (
        r"\x1b[2J\r\n\x00\x7f\x9b\u202e\udce9"
    )
    assert readable("a\n\tb\x1b", but="\n\t") == "a\n\tb\\x1b"
    assert readable(17) == "17"
    assert str(ConfigError("two\n  lines \x1b[2J")) == "two\n  lines \\x1b[2J"
    assert listing(["b\x1b", "a"]) == r"a, b\x1b"
    assert nearest("a\x07bc", ["a\x07bd"]) == r"Did you mean 'a\x07bd'?"
