"""Reads dates and timestamps from text exactly as Spark's `SparkDateTimeUtils` and its fallbacks do.

`from_json` calls it for the text that the compiled reader does not know. Dates are days and timestamps microseconds since
1970-01-01 (UTC). Years may have up to seven digits, so Python's own dates are of no use here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_MICROS = 1_000_000
_DAY_SECONDS = 86_400
_TRIMMED = frozenset([*range(0x21), 0x7F])
_JULIAN_DAYS_UNTIL = -141_427
_SHORT_IDS = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires", "ART": "Africa/Cairo",
    "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka", "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "EST": "-05:00",
    "HST": "-10:00", "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia",
    "MST": "-07:00", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
_OFFSET = re.compile(r"([+-])(?:(\d)|(\d\d)|(\d\d):(\d\d)|(\d\d)(\d\d)|(\d\d):(\d\d):(\d\d)|(\d\d)(\d\d)(\d\d))\Z", re.ASCII)


class UnknownZoneError(ValueError):
    """A time zone that Java does not know either. Names it."""


@lru_cache(maxsize=1024)
def zone(name: str) -> tzinfo:
    """The time zone of this name as Spark reads it. Raises UnknownZoneError."""
    padded = re.sub(r"([+-])([0-9]):", r"\g<1>0\2:", name, count=1)
    padded = re.sub(r"([+-])([0-9][0-9]):([0-9])$", r"\1\2:0\3", padded, count=1)
    padded = _SHORT_IDS.get(padded, padded)
    if padded in ("Z", "UTC", "GMT", "UT"):
        return UTC
    if padded[:1] in ("+", "-"):
        return _offset(padded, name)
    for prefix in ("UTC", "GMT", "UT"):
        if padded.startswith((prefix + "+", prefix + "-")):
            return _offset(padded[len(prefix) :], name)
    try:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9~/._+-]+", padded) or padded.startswith(("posix", "right/", "localtime")):
            raise UnknownZoneError(f"time zone {name!r} is unknown")
        return ZoneInfo(padded)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UnknownZoneError(f"time zone {name!r} is unknown") from error


def _offset(text: str, name: str) -> tzinfo:
    found = _OFFSET.match(text)
    if not found:
        raise UnknownZoneError(f"time zone {name!r} is unknown")
    numbers = [int(group) for group in found.groups()[1:] if group is not None]
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
    total = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or total > 18 * 3600:
        raise UnknownZoneError(f"time zone {name!r} is unknown")
    return timezone(timedelta(seconds=total if found[1] == "+" else -total))


def days_of(year: int, month: int, day: int) -> int | None:
    """Days since 1970-01-01 of a date of the proleptic Gregorian calendar, None if there is none or it needs 33 bits."""
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day > (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]:
        return None
    shifted = year - (month <= 2)
    cycle = shifted // 400
    of_cycle = shifted - cycle * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    days = cycle * 146_097 + of_cycle * 365 + of_cycle // 4 - of_cycle // 100 + of_year - 719_468
    return days if -(2**31) <= days < 2**31 else None


def _trim(raw: bytes) -> tuple[int, int]:
    start, end = 0, len(raw)
    while start < end and raw[start] in _TRIMMED:
        start += 1
    # The last byte stays when it is the only one; callers see an empty range by `start == len`.
    while end - 1 > start and raw[end - 1] in _TRIMMED:
        end -= 1
    return start, end


def date_of(raw: bytes) -> int | None:
    """Days of a date's text, None if it is none."""
    at, end = _trim(raw)
    if at == end:
        return None
    sign = -1 if raw[at] == 0x2D else 1
    if raw[at] in b"+-":
        at += 1
    segments = [1, 1, 1]
    which = value = digits = 0

    def valid() -> bool:
        return 4 <= digits <= 7 if which == 0 else 0 < digits <= 2

    while at < end and raw[at] not in b" T":
        byte = raw[at]
        if which < 2 and byte == 0x2D:
            if not valid():
                return None
            segments[which] = value
            value = digits = 0
            which += 1
        elif 0x30 <= byte <= 0x39:
            value = value * 10 + byte - 0x30
            digits += 1
        else:
            return None
        at += 1
    if not valid() or (which < 2 and at < end):
        return None
    segments[which] = value
    return days_of(sign * segments[0], segments[1], segments[2])


def _numbers_of(raw: bytes) -> tuple[list[int], str | None, bool] | None:
    """A timestamp's year to microsecond, its zone's name, and whether it has a time only; None if it is no timestamp.

    A port of `parseTimestampString` with its ways: segment 7 is what follows a zone.
    """
    at, end = _trim(raw)
    if at == end:
        return None
    segments = [1, 1, 1, 0, 0, 0, 0, 0, 0]
    which = value = digits = fraction = 0
    sign: int | None = None
    zone_name: str | None = None
    just_time = False
    if raw[at] in b"+-":
        sign = -1 if raw[at] == 0x2D else 1
        at += 1

    def valid(segment: int) -> bool:
        if segment == 6:
            return True
        if segment == 0:
            return 4 <= digits <= 6
        return digits <= 2 and (segment == 7 or digits > 0)

    while at < end:
        byte = raw[at]
        if 0x30 <= byte <= 0x39:
            fraction += which == 6
            if which != 6 or digits < 6:
                value = value * 10 + byte - 0x30
            digits += 1
            at += 1
            continue
        target = which + 1
        if at == 0 and byte == 0x54:
            just_time = True
            which = 3
            at += 1
            continue
        if which < 2:
            if byte == 0x3A and which == 0 and sign is None:
                just_time = True
                which, target = 3, 4
            elif byte != 0x2D:
                return None
        elif which == 2:
            if byte not in b" T":
                return None
        elif which in (3, 4):
            if byte != 0x3A:
                return None
        elif which in (5, 6):
            if not (byte == 0x2E and which == 5):
                zone_name = raw[at:end].decode("utf-8", "replace")
                target = 7
        elif which >= len(segments) or byte not in b": ":
            return None
        if not valid(which):
            return None
        segments[which] = value
        value = digits = 0
        which = target
        at = end if zone_name is not None and target == 7 else at + 1
    if which >= len(segments) or not valid(which):
        return None
    segments[which] = value
    segments[6] *= 10 ** max(0, 6 - fraction)
    segments[0] *= 1 if sign is None else sign
    return segments, zone_name, just_time


def timestamp_of(raw: bytes, session_zone: tzinfo) -> int | None:
    """Microseconds of a timestamp's text, None if it is none. A text without a zone is in `session_zone`."""
    found = _numbers_of(raw)
    if found is None:
        return None
    (year, month, day, hour, minute, second, micros, *_), zone_name, just_time = found
    try:
        where = session_zone if zone_name is None else zone(zone_name.strip("".join(map(chr, range(0x21)))))
    except UnknownZoneError:
        return None
    if hour > 23 or minute > 59 or second > 59:
        return None
    if just_time:
        today = datetime.now(where)
        year, month, day = today.year, today.month, today.day
    days = days_of(year, month, day)
    if days is None:
        return None
    local = days * _DAY_SECONDS + hour * 3600 + minute * 60 + second
    result = (local - offset_at(where, year, local)) * _MICROS + micros
    return result if -(2**63) <= result < 2**63 else None


def offset_at(where: tzinfo, year: int, local_seconds: int) -> int:
    """Seconds that a zone is ahead of UTC at a local time (seconds since 1970-01-01 00:00 there)."""
    if isinstance(where, timezone):
        return int(where.utcoffset(None).total_seconds())
    # The last rules hold for ever, and repeat with the calendar's 400 years; before the first a zone has its local mean time.
    shift = 0 if 1 <= year <= 9998 else (9200 + year % 400 if year > 0 else 1 + year % 400) - year
    days = shift // 400 * 146_097 if shift % 400 == 0 else _cycle_days(year, shift)
    moment = datetime(1970, 1, 1) + timedelta(seconds=local_seconds + days * _DAY_SECONDS)
    offset = moment.replace(tzinfo=where).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())


def _cycle_days(year: int, shift: int) -> int:
    first, moved = days_of(year, 1, 1), days_of(year + shift, 1, 1)
    assert first is not None
    assert moved is not None
    return moved - first


def legacy_timestamp_of(raw: bytes, session_zone: tzinfo) -> int | None:
    """As `timestamp_of`, then as Spark 2 wrote timestamps (with GMT in them)."""
    found = timestamp_of(raw, session_zone)
    return timestamp_of(raw.replace(b"GMT", b""), session_zone) if found is None else found


def legacy_date_of(raw: bytes, text: str) -> int | None:
    """As `date_of`, then as Spark 1 wrote dates: a number of days of the hybrid calendar."""
    found = date_of(raw)
    if found is None:
        found = date_of(raw.replace(b"GMT", b""))
    if found is None and re.fullmatch(r"[+-]?\d+", text) and -(2**31) <= int(text) < 2**31:
        return _from_hybrid(int(text))
    return found


def _from_hybrid(days: int) -> int:
    """The day whose Gregorian date reads like the Julian date of this day; days since the switch of 1582 are the same."""
    if days >= _JULIAN_DAYS_UNTIL:
        return days
    shifted = days + 719_470  # days since 0000-03-01 of the Julian calendar
    cycle, of_cycle = divmod(shifted, 1461)
    of_cycle_year = min(of_cycle // 365, 3)
    of_year = of_cycle - of_cycle_year * 365
    month = (5 * of_year + 2) // 153
    year = cycle * 4 + of_cycle_year + (month >= 10)
    first = days_of(year, month + 3 if month < 10 else month - 9, 1)
    assert first is not None
    return first + of_year - (153 * month + 2) // 5
