"""Whether a value that a program gives for a setting is of its kind and in its range.

Called by `worker` and `spark.async_map`, which say whose setting it is, and refuse it. Decides nothing about any one setting.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any


def no_number(value: Any, least: float, *, whole: bool = False) -> str:
    """What a number of `least` or more must be, and this is not: "must be ..., not ..."; empty if it is one.

    Seconds, unless it is to be `whole`. What is no finite number would be found out late: nothing is below or above NaN.
    """
    # A bool is an int to Python, and a mistake here.
    is_one = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not is_one or not -math.inf < value < math.inf:
        return f"must be {'a whole number' if whole else 'a number of seconds'}, {least} or more, not {value!r}"
    return f"must be {least} or more, not {value}" if value < least else ""


def no_truth(value: Any) -> str:
    """The same for True and False: a text such as "false" would count as true."""
    return "" if isinstance(value, bool) else f"must be True or False, not {value!r}"
