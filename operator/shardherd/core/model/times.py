"""Times as Kubernetes writes them. Called wherever a status holds one; decides nothing."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(wall: float) -> str:
    """Seconds since 1970 as Kubernetes writes times."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since_1970(text: str) -> float:
    """The other way round. Raises ValueError for what is no such time."""
    return datetime.fromisoformat(text).timestamp()


def is_time(text: str) -> bool:
    """Whether there is such a time: of thirteen months, say, there is none."""
    try:
        seconds_since_1970(text)
    except ValueError:
        return False
    return True
