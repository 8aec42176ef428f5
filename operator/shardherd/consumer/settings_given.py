"""Whether a value that a program, or a variable of its pod, gives for a setting is of its kind and in its range.

Called by `worker`, `client` and `spark`, which say whose setting it is, and refuse it. Decides nothing about any one setting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

LARGEST = 2**63 - 1
"""The largest whole number that there may be, where nothing else limits it."""

MOST_MILLIS = 10**12
"""The longest that a time may be in milliseconds, which is about thirty years: a thread can wait so long."""

MOST_PORT = 65_535

SHOWN = 80
"""Characters of a wrong value that a message shows."""


def no_number(value: Any, least: float, *, whole: bool = False) -> str:
    """What a number of `least` or more must be, and this is not: "must be ..., not ..."; empty if it is one.

    Seconds, unless it is to be `whole`. What is no finite number would be found out late: nothing is below or above NaN.
    """
    # A bool is an int to Python, and a mistake here.
    is_one = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not is_one or not -math.inf < value < math.inf:
        return f"must be {'a whole number' if whole else 'a number of seconds'}, {least} or more, not {value!r}"
    if value < least:
        return f"must be {least} or more, not {value}"
    most = LARGEST if whole else MOST_MILLIS // 1000
    return f"must be at most {most}, not {value}" if value > most else ""


def whole_in(environment: Mapping[str, str], name: str, default: int, *, least: int = 0, most: int = LARGEST) -> int:
    """What a variable says; the default if it is not set, or empty. Raises ValueError, which names it and what it must be."""
    text = environment.get(name, "").strip()
    if not text:
        return default
    if re.fullmatch("[0-9]{1,19}", text) is None or not least <= int(text) <= most:
        limits = f"{least} or more" if most == LARGEST else f"from {least} to {most}"
        raise ValueError(f"{name} must be a whole number, {limits}, not {text[:SHOWN]!r}")
    return int(text)


def no_truth(value: Any) -> str:
    """The same for True and False: a text such as "false" would count as true."""
    return "" if isinstance(value, bool) else f"must be True or False, not {value!r}"
