"""Label selectors and what they choose: one table for our reading of them and for the API server's."""

from __future__ import annotations

LABELS: dict[str, dict[str, str]] = {
    "bare": {},
    "a": {"shardherd.dev/operator": "a", "team": "red"},
    "b": {"shardherd.dev/operator": "b", "team": "blue"},
    "empty": {"team": ""},
}
"""Labels of four objects."""

SELECTORS = {
    "shardherd.dev/operator=a": "a",
    "shardherd.dev/operator == b": "b",
    "team!=red": "bare b empty",
    "team": "a b empty",
    "!team": "bare",
    "! team": "bare",
    "team in (red,blue)": "a b",
    "team in ( red , blue )": "a b",
    "team notin (red)": "bare b empty",
    "team notin(red,blue)": "bare empty",
    "team=": "empty",
    "team,team!=": "a b",
    "team in (red,)": "a empty",
    " team , shardherd.dev/operator notin (b) ": "a empty",
    "Team_x.y-1=Z_1": "",
    "nobody=has-it": "",
}
"""Selectors, and whom of these they choose."""

REFUSED = {
    "": "nothing stands beside a comma",
    "team=red,": "nothing stands beside a comma",
    "team=red,,b": "nothing stands beside a comma",
    "team red": "'team red' is none of key, !key, key=value",
    "team in red": "'team in red' is none of",
    "team in (red": "'team in (red' is none of",
    "team=red)": "'team=red)' is none of",
    "team===red": "'team===red' is none of",
    "=red": "'=red' is none of",
    "!team=red": "'!team=red' is none of",
    "-team=red": "'-team' in '-team=red' can be no label's key",
    "/team": "'/team' in '/team' can be no label's key",
    "Example.com/team": "'Example.com/team' in 'Example.com/team' can be no label's key",
    "team=red-": "'red-' in 'team=red-' can be no label's value",
    "team in (red,no/good)": "'no/good' in 'team in (red,no/good)' can be no label's value",
    f"team={'x' * 64}": "can be no label's value",
    f"{'x' * 64}=red": "can be no label's key",
}
"""What is no selector, and what is said of it."""
