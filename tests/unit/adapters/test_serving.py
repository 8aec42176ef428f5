"""The Secret that all operators serve from: who writes it, what is taken up and when, and what is said when it cannot be."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from shardherd.adapters import certificates
from shardherd.adapters.certificates import AUTHORITY_KEYS, BUNDLE, CHAIN, Data
from shardherd.adapters.kubernetes import serving
from shardherd.adapters.kubernetes.api import ApiError
from shardherd.adapters.kubernetes.serving import ANNOUNCED, ServingCertificate
from shardherd.core.planning.certificates import DAY, Lifetimes
from tests.harness.authorities import HOST, foreign
from tests.harness.simulated_clock import SimulatedClock


class Secrets:
    """As much of an API server as one Secret needs."""

    def __init__(self, data: Data | None = None) -> None:
        self.data: Data | None = {} if data is None else data
        self.version = 1
        self.writes = 0
        self.refuse = 0
        self.reads = 0
        self.read = asyncio.Condition()

    async def acall(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        assert path == "/api/v1/namespaces/system/secrets/shardherd-tls"
        async with self.read:
            self.reads += 1
            self.read.notify_all()
        if self.refuse:
            raise ApiError("the API server refused", self.refuse, "")
        if self.data is None:
            raise ApiError("not found", 404, "NotFound")
        if method == "PATCH":
            if body["metadata"]["resourceVersion"] != str(self.version):
                raise ApiError("the object has been modified", 409, "Conflict")
            self.put({**self.data, **{key: base64.b64decode(value) for key, value in body["data"].items()}})
            self.writes += 1
            return None
        found = {
            "metadata": {"resourceVersion": str(self.version)},
            "data": {key: base64.b64encode(value).decode() for key, value in self.data.items()},
        }
        # The others read before anybody writes.
        await asyncio.sleep(0)
        return found

    async def asked(self, times: int) -> None:
        """Wait until there were so many requests."""
        async with self.read:
            await self.read.wait_for(lambda: self.reads >= times)

    def put(self, data: Data) -> None:
        self.data, self.version = data, self.version + 1


def operator(secrets: Any, clock: SimulatedClock, *, ours: bool = True) -> ServingCertificate:
    lifetimes = Lifetimes() if ours else None
    return ServingCertificate(secrets, clock, "system", "shardherd-tls", frozenset({HOST}), lifetimes)


async def test_of_two_operators_that_start_at_once_one_makes_what_both_serve_with() -> None:
    secrets, clock = Secrets(), SimulatedClock()
    one, other = operator(secrets, clock), operator(secrets, clock)
    before = one.ready

    assert list(await asyncio.gather(one.look(), other.look())) == ["", ""]

    assert secrets.writes == 1
    assert (before, one.ready, other.ready) == (False, True, True)
    assert secrets.data is not None
    assert one.bundle() == other.bundle() == secrets.data[BUNDLE].decode()
    assert one.until == other.until == pytest.approx(clock.wall() + 90 * DAY, abs=1)


async def test_what_is_not_due_is_not_written() -> None:
    secrets, clock = Secrets(), SimulatedClock()
    one = operator(secrets, clock)
    await one.look()
    for _ in range(5):
        clock.advance(10 * DAY)
        await one.look()
    assert secrets.writes == 1
    clock.advance(10 * DAY)
    await one.look()
    assert secrets.writes == 2
    assert one.until == pytest.approx(clock.wall() + 90 * DAY, abs=1)


async def test_over_more_than_a_year_what_is_served_was_in_the_bundle_of_the_day_before() -> None:
    secrets, clock = Secrets(), SimulatedClock()
    one = operator(secrets, clock)
    await one.look()
    before = certificates.certificates(one.bundle().encode())
    for _ in range(400):
        clock.advance(DAY)
        await one.look()
        assert secrets.data is not None
        leaf = certificates.serving(secrets.data)
        assert leaf is not None
        assert any(leaf.issuer == each.subject and _verifies(leaf, each) for each in before)
        assert one.until == certificates.until(leaf) <= one.authority_until
        before = certificates.certificates(one.bundle().encode())


async def test_the_end_of_an_authority_is_still_told_when_it_has_passed() -> None:
    clock = SimulatedClock()
    one = operator(Secrets(foreign(clock.wall())), clock, ours=False)
    assert (one.until, one.authority_until) == (0.0, 0.0)
    await one.look()
    ends = one.authority_until

    clock.advance(500 * DAY)
    await one.look()

    assert (one.authority_until, one.bundle()) == (ends, "")


def _verifies(leaf: Any, authority: Any) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 - any reason means no
        return False
    return True


async def test_somebody_elses_certificate_by_an_authority_nobody_knows_yet_waits_until_it_is_announced() -> None:
    clock = SimulatedClock()
    first, second = foreign(clock.wall()), foreign(clock.wall() + DAY)
    secrets = Secrets(first)
    one = operator(secrets, clock, ours=False)
    assert await one.look() == ""
    until = one.until
    authorities = [certificates.until(certificates.certificates(each[BUNDLE])[0]) for each in (first, second)]
    assert one.authority_until == authorities[0]

    secrets.put(second)
    assert await one.look() == ""
    assert (one.until, one.authority_until) == (until, authorities[0])
    assert one.bundle().encode() == second[BUNDLE] + first[BUNDLE]

    clock.advance(ANNOUNCED)
    assert await one.look() == ""
    assert (one.until, one.authority_until) == (until + DAY, authorities[1])
    assert one.bundle().encode() == second[BUNDLE] + first[BUNDLE]
    assert secrets.writes == 0


async def test_a_certificate_that_ends_is_not_waited_with() -> None:
    clock = SimulatedClock()
    secrets = Secrets(foreign(clock.wall() - 90 * DAY + ANNOUNCED))
    one = operator(secrets, clock, ours=False)
    await one.look()
    secrets.put(foreign(clock.wall()))
    await one.look()
    assert one.until == pytest.approx(clock.wall() + 90 * DAY, abs=1)


async def test_an_authority_that_ended_is_not_in_the_bundle() -> None:
    clock = SimulatedClock()
    first, second = foreign(clock.wall()), foreign(clock.wall() + 300 * DAY)
    secrets = Secrets(first)
    one = operator(secrets, clock, ours=False)
    await one.look()
    secrets.put(second)
    await one.look()
    clock.advance(366 * DAY)
    await one.look()
    assert one.bundle().encode() == second[BUNDLE]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, "Secret 'shardherd-tls' in namespace 'system' holds no tls.crt with its tls.key: nothing new is served"),
        (
            {BUNDLE: b""},
            "Secret 'shardherd-tls' in namespace 'system' holds no ca.crt, by which consumers would know us: use an issuer that"
            " gives it",
        ),
    ],
)
async def test_what_cannot_be_served_with_is_told_and_what_was_served_goes_on(data: Data, said: str) -> None:
    clock = SimulatedClock()
    good = foreign(clock.wall())
    secrets = Secrets(good)
    one = operator(secrets, clock, ours=False)
    await one.look()
    secrets.put({**good, **data} if data else {})
    assert await one.look() == said
    assert one.ready
    assert one.bundle().encode() == good[BUNDLE]


@pytest.mark.parametrize(("ours", "remedy"), [(True, "the chart makes it"), (False, "whoever keeps it has not made it yet")])
async def test_a_secret_that_is_not_there_is_told_with_who_makes_it(ours: bool, remedy: str) -> None:
    secrets = Secrets()
    secrets.data = None
    with pytest.raises(ApiError, match=f"there is no Secret 'shardherd-tls' in namespace 'system': {remedy}"):
        await operator(secrets, SimulatedClock(), ours=ours).look()


async def test_it_goes_on_trying_and_says_each_failure_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "FIRST_LOOKS", 0.001)
    secrets = Secrets()
    secrets.refuse = 403
    one = operator(secrets, SimulatedClock())
    running = asyncio.create_task(one.run())
    await secrets.asked(5)
    secrets.refuse = 0
    await asyncio.wait_for(one.available(), 5)
    running.cancel()
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "the serving certificate cannot be read or kept: the API server refused"
    ]


async def test_a_lost_secret_is_made_anew_and_the_old_authority_stays_trusted_by_who_knew_it() -> None:
    secrets, clock = Secrets(), SimulatedClock()
    one = operator(secrets, clock)
    await one.look()
    before, until = one.bundle(), one.until
    secrets.put({})
    clock.advance(60)
    await one.look()
    assert before in one.bundle()
    assert one.until == until
    clock.advance(ANNOUNCED)
    await one.look()
    assert one.until == until + 60


def test_our_secrets_keep_the_keys_of_authorities_and_others_do_not() -> None:
    assert set(foreign()) == {BUNDLE, CHAIN, "tls.key"}
    assert AUTHORITY_KEYS not in foreign()
