"""Whether a heartbeat would have news, and how long the next one may wait without.

The session asks after every answer. Which shards a heartbeat names is the ledger's rule.
"""

from __future__ import annotations

from msgspec.structs import replace

from shardherd.core.model.nouns import Heartbeat


def is_news(sent: Heartbeat, next_one: Heartbeat) -> bool:
    """Whether the next heartbeat would say anything new: the count, the progress, the phase or the gauges alone are no news."""
    return sent != replace(
        next_one,
        seq=sent.seq,
        progress=sent.progress,
        phase=sent.phase,
        phase_age=sent.phase_age,
        goes_on_in=sent.goes_on_in,
        gauges=sent.gauges,
    )


def pause_after(sent: Heartbeat, next_one: Heartbeat, took: float, interval: float) -> float:
    """Seconds to wait after an answer that `took` so long.

    0, except after an answer before its time that changed nothing: it must not become a tight loop.
    """
    return interval - took if took < interval / 2 and not is_news(sent, next_one) else 0.0
