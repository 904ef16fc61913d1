from sslengine.errors import ConfigError, SSLEngineError, listing, nearest, readable


def test_nearest_names_the_closest_first() -> None:
    assert nearest("temprature", ["momentum", "temperature"]) == "Did you mean 'temperature'?"


def test_nearest_ignores_case_but_keeps_the_known_spelling() -> None:
    assert nearest("trunk", ["TRUNK", "HEAD"]) == "Did you mean 'TRUNK'?"


def test_nearest_finds_swapped_letters_and_parts_of_names() -> None:
    assert nearest("tyni", ["large", "tiny"]) == "Did you mean 'tiny'?"
    assert nearest("simclr", ["simclr_info_nce_loss"]) == "Did you mean 'simclr_info_nce_loss'?"


def test_nearest_says_nothing_when_nothing_is_near() -> None:
    assert nearest("qqqq", ["momentum", "temperature"]) == ""


def test_listing_is_sorted_and_cut() -> None:
    assert listing(["b", "a"]) == "a, b"
    assert listing([f"n{i:02d}" for i in range(40)], limit=2) == "n00, n01, ... (40 in all)"


def test_every_error_is_one_that_the_command_line_catches() -> None:
    assert issubclass(ConfigError, SSLEngineError)


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
