"""Rules of the resource definition, as far as this machine evaluates them by itself."""

from __future__ import annotations

from typing import Any

import pytest

from shardherd.local.cel import CelError, Optional, duration, evaluate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("-2 + 3 - 1", 0),
        ("1 < 2 && 2 <= 2 && 3 > 2 && 3 >= 3 && 1 != 2 && 1 == 1", True),
        ("false || true && false", False),
        ("!(true && false)", True),
        ("true ? 'yes' : 'no'", "yes"),
        ("false ? 'yes' : true ? 'other' : 'no'", "other"),
        ("'a' in ['a', 'b'] && !('c' in ['a', 'b'])", True),
        ("'key' in self.map", True),
        ("self.list[1]", 8),
        ("has(self.name) && !has(self.nothing)", True),
        ("has(self.map.key) && !has(self.map.other)", True),
        ("self.name.size() == 6 && self.name.startsWith('cl') && self.name.endsWith('ks')", True),
        ("self.name.contains('ick') && self.name.matches('^[a-z]+$') && !self.name.matches('^x')", True),
        (r"'a\\b'.size()", 3),
        ("duration('1m30s') > duration('89s') && duration('500ms').getMilliseconds() == 500", True),
        ("duration('1h') == duration('60m')", True),
        ("quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('85%'.replace('%', '')).isLessThan(quantity('90'))", True),
        ("'%d of %d'.format([self.list[0], 9])", "7 of 9"),
        ("oldSelf.hasValue() && oldSelf.value().n == 1", True),
        ("has(oldSelf.value().n)", True),
        ("'x'.matches(self.name) in [true, false]", True),
        ("\"double\" + 'single'", "doublesingle"),
    ],
)
def test_an_expression_has_its_value(text: str, value: Any) -> None:
    scope = {"self": {"name": "clicks", "list": [7, 8], "map": {"key": 1}}, "oldSelf": Optional({"n": 1}, True)}
    assert evaluate(text, scope) == value


@pytest.mark.parametrize(
    "text",
    ["1 +", "(1", "self.size(", "nothing(1)", "self.nothing()", "1 2", "'open", "#", "self.", "self.missing", "'a' + 1", "x"],
)
def test_what_cannot_be_evaluated_is_an_error_and_never_passes(text: str) -> None:
    with pytest.raises(CelError):
        evaluate(text, {"self": {}})


def test_a_pattern_that_is_none_is_an_error() -> None:
    with pytest.raises(CelError, match="missing"):
        evaluate("'x'.matches(self)", {"self": "clicks("})


def test_who_needs_no_value_asks_for_none() -> None:
    assert evaluate("!has(self.a) || self.a.b == 1", {"self": {}}) is True


@pytest.mark.parametrize("text", ["", "85%", "1.5Gi", "Gi", "1gi"])
def test_what_is_no_quantity_is_an_error(text: str) -> None:
    with pytest.raises(CelError, match="is no quantity"):
        evaluate(f"quantity('{text}')", {})


@pytest.mark.parametrize("text", ["", "3", "3d", "s3", "1.5s"])
def test_what_is_no_duration_is_an_error(text: str) -> None:
    with pytest.raises(CelError, match="is no duration"):
        duration(text)
