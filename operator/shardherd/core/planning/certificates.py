"""When to make an authority, when to issue the serving certificate anew, and by which authority: the rotation of TLS.

A pure function of the time and of what there is. `adapters.certificates` calls it and carries the decision out. It knows
nothing of keys, formats or Secrets.

An authority is made long before it is needed and only trusted at first; it signs once everybody had `overlap` to learn of it.
The one before it stays trusted to its end, but its key is thrown away as soon as its successor signs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DAY = 24 * 3600.0

LONGEST_OVERLAP = DAY
"""Seconds for which an authority is only trusted: the kubelet needs about a minute to bring it to every pod, and an API server
that refuses or is away is mended within a day."""

RENEWED_AT = 2 / 3
"""The part of its life after which a certificate or an authority gets a successor."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Seconds for which an authority and a serving certificate are made."""

    authority: float = 365 * DAY
    certificate: float = 90 * DAY

    @property
    def overlap(self) -> float:
        """Seconds for which an authority is trusted before it signs."""
        return min(LONGEST_OVERLAP, self.authority / 12)


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority: its fingerprint, since and until when it is valid (wall seconds), whether we have its key."""

    name: str
    since: float
    until: float
    has_key: bool = True


@dataclass(frozen=True, slots=True)
class Certificate:
    """A serving certificate with its key: which authority signed it (empty: none that we know), when it is valid, for whom."""

    authority: str
    since: float
    until: float
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Rotation:
    """What to do. `make`: a new authority. `signer`: who signs, empty for the new one. `issue`: a new serving certificate.

    `trusted`: of the authorities that there are, those that stay trusted. `keys`: those whose keys are kept. Each by its name,
    the oldest first; a new authority comes on top of both.
    """

    make: bool
    signer: str
    issue: bool
    trusted: tuple[str, ...]
    keys: tuple[str, ...]


def rotation(
    now: float,
    authorities: Sequence[Authority],
    certificate: Certificate | None,
    names: frozenset[str],
    lifetimes: Lifetimes,
) -> Rotation:
    """What is due at `now` (wall seconds) so that a certificate for `names` can be served that everybody trusts already."""
    valid = sorted((each for each in authorities if each.until > now), key=lambda each: (each.since, each.name))
    able = [each for each in valid if each.has_key]
    announced = [each for each in able if now - each.since >= lifetimes.overlap]
    # Where none has been announced for long enough, the oldest is known to most.
    signer = announced[-1] if announced else able[0] if able else None
    make = not able or _due(now, able[-1])
    issue = (
        certificate is None
        or signer is None
        or certificate.authority != signer.name
        or certificate.names != names
        or _due(now, certificate)
    )
    return Rotation(
        make=make,
        signer="" if signer is None else signer.name,
        issue=issue,
        trusted=tuple(each.name for each in valid),
        keys=tuple(each.name for each in able if signer is not None and each.since >= signer.since),
    )


def _due(now: float, made: Authority | Certificate) -> bool:
    return now >= made.since + RENEWED_AT * (made.until - made.since)
