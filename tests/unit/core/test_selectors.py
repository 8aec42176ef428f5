"""Which namespaces a label selector chooses, and what is none. tests/integration asks the API server the same."""

from __future__ import annotations

import pytest

from shardherd.core.model.selectors import SelectorError, parse
from tests.harness.selectors import LABELS, REFUSED, SELECTORS


@pytest.mark.parametrize(("selector", "chosen"), SELECTORS.items(), ids=repr)
def test_it_chooses_what_the_api_server_would(selector: str, chosen: str) -> None:
    parsed = parse(selector)
    assert " ".join(name for name, labels in LABELS.items() if parsed.matches(labels)) == chosen


@pytest.mark.parametrize(("selector", "said"), REFUSED.items(), ids=repr)
def test_what_is_none_is_refused_with_what_is_wrong_and_how_it_is_written(selector: str, said: str) -> None:
    with pytest.raises(SelectorError) as refused:
        parse(selector)
    assert said in str(refused.value)
    assert str(refused.value).endswith("write for example shardherd.dev/operator=a, or team in (a,b),!retired")
