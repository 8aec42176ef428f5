"""Which topics a source names."""

from __future__ import annotations

import pytest

from shardherd.core.group.topics import PatternError, check, selects


@pytest.mark.parametrize(
    ("topics", "pattern", "selected"),
    [
        (("clicks", "views"), "", ["clicks", "views"]),
        ((), "cl.*", ["clicks", "clicks2"]),
        (("views",), "clicks", ["clicks"]),
        ((), "", []),
    ],
)
def test_a_source_names_its_topics_or_whole_names_by_a_pattern(
    topics: tuple[str, ...], pattern: str, selected: list[str]
) -> None:
    assert [topic for topic in ("clicks", "clicks2", "views", "my-clicks") if selects(topics, pattern, topic)] == selected


def test_a_pattern_that_makes_a_backtracking_matcher_try_for_ages_is_answered_at_once() -> None:
    assert [selects((), "(a|a)+(b|b)+", "a" * length + ".") for length in (10, 248)] == [False, False]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(", r"missing \)"),
        ("(?!internal-).*", r"invalid perl operator: \(\?!"),
        (r"(a)\1", r"invalid escape sequence: \\1"),
        ("a{1001}", r"invalid repetition size"),
    ],
)
def test_what_cannot_be_matched_in_bounded_time_is_no_pattern(
    pattern: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for ask in (lambda: check(pattern), lambda: selects((), pattern, "clicks")):
        with pytest.raises(PatternError, match=said):
            ask()
    # The library would write to the standard error by itself.
    assert capfd.readouterr() == ("", "")


def test_a_pattern_that_is_one_passes() -> None:
    check(r"team-[a-z]+\.v\d+\.(clicks|views)")
