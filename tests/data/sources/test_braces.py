"""The expected names are those of the package braceexpand 0.1.7."""

from __future__ import annotations

import pytest

from sslengine.data.sources.braces import MOST, expand_braces


@pytest.mark.parametrize(
    ("pattern", "names"),
    [  # "_" for no letters at all
        ('a', 'a'),
        ('t-{0..3}', 't-0 t-1 t-2 t-3'),
        ('t-{00..03}', 't-00 t-01 t-02 t-03'),
        ('t-{3..0}', 't-3 t-2 t-1 t-0'),
        ('{0..10..5}', '0 5 10'),
        ('{8..-2..5}', '8 3 -2'),
        ('{-1..1}', '-1 0 1'),
        ('{-01..1}', '-01 000 001'),
        ('{09..11}', '09 10 11'),
        ('{9..011}', '009 010 011'),
        ('{8..11}', '8 9 10 11'),
        ('{001..1}', '001'),
        ('{1..001}', '001'),
        ('{0..-0}', '0'),
        ('{1..3..0}', '1 2 3'),
        ('{1..5..-2}', '1 3 5'),
        ('{10..8..1}', '10 9 8'),
        ('{-5..-3}', '-5 -4 -3'),
        ('{a..e}', 'a b c d e'),
        ('{a..e..2}', 'a c e'),
        ('{e..a}', 'e d c b a'),
        ('{Y..b}', 'Y Z a b'),
        ('x{a,b}y', 'xay xby'),
        ('x{a}y', 'x{a}y'),
        ('x{}y', 'x{}y'),
        ('{,a}', '_ a'),
        ('{a,,b}', 'a _ b'),
        ('{1..a}', '{1..a}'),
        ('{a..1}', '{a..1}'),
        ('{1.5..2}', '{1.5..2}'),
        ('{ 0..2}', '{ 0..2}'),
        ('{aa..bb}', '{aa..bb}'),
        ('{{a,b},c}', 'a b c'),
        ('{a,{0..2}}z', 'az 0z 1z 2z'),
        ('{a,b}{0..1}', 'a0 a1 b0 b1'),
        ('{a},{b}', '{a},{b}'),
        ('{}{1..2}', '{}1 {}2'),
        ('{x{1,2}}', '{x1} {x2}'),
        ('x\\{a,b\\}', 'x{a,b}'),
        ('{a,b\\,c}', 'a b,c'),
        ('a\\b', 'ab'),
        ('{\\{,x}', '{ x'),
        ('a\\', 'a\\'),
        ('${a,b}', '$a $b'),
        ('/d/{train,val}-{00..01}.tar', '/d/train-00.tar /d/train-01.tar /d/val-00.tar /d/val-01.tar'),
        ('{a,b{c,d{e,f}}}g', 'ag bcg bdeg bdfg'),
    ],
)  # fmt: skip
def test_names_of_a_pattern(pattern: str, names: str) -> None:
    expected = [names] if pattern == "{ 0..2}" else names.split()
    assert [each or "_" for each in expand_braces(pattern)] == expected


@pytest.mark.parametrize("pattern", ["{a,b", "a}b", "x{0..2}{a", "{a,b}}", "{{a}", "}{"])
def test_braces_without_their_other_half(pattern: str) -> None:
    with pytest.raises(ValueError, match="without its"):
        expand_braces(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["{0..99999999999}", "{0..9}" * 7, "{a,b}" * 20, "{0..999}{0..999}{0,1}", f"{{1..{MOST + 1}}}",
     "{{0..900000},{0..900000}}", "{-99999999999999999999..0..3}"],
)  # fmt: skip
def test_more_names_than_anybody_has_shards(pattern: str) -> None:
    """Told at once: they are counted and not made."""
    with pytest.raises(ValueError, match=r"it means [\d,]+ names; 1,000,000 are the most"):
        expand_braces(pattern)


def test_as_many_as_are_allowed() -> None:
    assert len(expand_braces("{1..7}{1..7}", most=49)) == 49
    with pytest.raises(ValueError, match="it means 49 names; 48 are"):
        expand_braces("{1..7}{1..7}", most=48)


def test_braces_too_deep_and_numbers_too_long() -> None:
    with pytest.raises(ValueError, match="more than 20 braces in each other"):
        expand_braces("{a," * 5000 + "b" + "}" * 5000)
    with pytest.raises(ValueError, match="digits"):
        expand_braces("{0.." + "9" * 5000 + "}")
