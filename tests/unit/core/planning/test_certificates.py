"""When TLS certificates and their authorities are replaced: nobody is ever shown what it cannot believe yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from shardherd.core.planning.certificates import DAY, Authority, Certificate, Lifetimes, Rotation, rotation

NAMES = frozenset({"shardherd.system.svc"})
LIFETIMES = Lifetimes(authority=360 * DAY, certificate=90 * DAY)

FIRST = Authority("first", since=0.0, until=360 * DAY)
SECOND = Authority("second", since=240 * DAY, until=600 * DAY)
SERVED = Certificate("first", since=0.0, until=90 * DAY, names=NAMES)

NOTHING = Rotation(make=False, signer="first", issue=False, trusted=("first",), keys=("first",))


def at(day: float, authorities: Sequence[Authority] = (FIRST,), certificate: Certificate | None = SERVED) -> Rotation:
    return rotation(day * DAY, authorities, certificate, NAMES, LIFETIMES)


def test_in_an_empty_secret_all_is_made_at_once() -> None:
    assert at(0, (), None) == Rotation(make=True, signer="", issue=True, trusted=(), keys=())


def test_what_is_new_is_left_alone() -> None:
    assert at(0) == NOTHING
    assert at(59.9) == NOTHING


def test_a_certificate_is_issued_anew_after_two_thirds_of_its_life() -> None:
    assert at(60) == replace(NOTHING, issue=True)


@pytest.mark.parametrize(
    "certificate",
    [
        pytest.param(None, id="none, or one without its key"),
        pytest.param(replace(SERVED, names=frozenset({"another.system.svc"})), id="one for another name"),
        pytest.param(replace(SERVED, authority=""), id="one by an authority that is not known"),
    ],
)
def test_a_certificate_that_is_of_no_use_is_issued_anew(certificate: Certificate | None) -> None:
    assert at(1, (FIRST,), certificate) == replace(NOTHING, issue=True)


def test_an_authority_gets_a_successor_after_two_thirds_of_its_life_which_does_not_sign_yet() -> None:
    served = Certificate("first", 230 * DAY, 320 * DAY, NAMES)
    assert at(239.9, (FIRST,), served) == NOTHING
    assert at(240, (FIRST,), served) == replace(NOTHING, make=True)


def test_for_a_day_both_are_trusted_and_the_old_one_signs() -> None:
    served = Certificate("first", 230 * DAY, 320 * DAY, NAMES)
    both = Rotation(make=False, signer="first", issue=False, trusted=("first", "second"), keys=("first", "second"))
    assert at(240.9, (SECOND, FIRST), served) == both
    # A certificate that is due meanwhile is still by the old one.
    assert at(240.9, (SECOND, FIRST), Certificate("first", 170 * DAY, 260 * DAY, NAMES)) == replace(both, issue=True)


def test_then_the_new_one_signs_and_the_key_of_the_old_one_goes() -> None:
    served = Certificate("first", 230 * DAY, 320 * DAY, NAMES)
    after = Rotation(make=False, signer="second", issue=True, trusted=("first", "second"), keys=("second",))
    assert at(241, (FIRST, SECOND), served) == after


def test_the_old_one_stays_trusted_to_its_end() -> None:
    keyless, served = replace(FIRST, has_key=False), Certificate("second", 320 * DAY, 410 * DAY, NAMES)
    at_rest = Rotation(make=False, signer="second", issue=False, trusted=("first", "second"), keys=("second",))
    assert at(359.9, (keyless, SECOND), served) == at_rest
    assert at(360, (keyless, SECOND), served) == replace(at_rest, trusted=("second",))


def test_an_authority_whose_key_is_lost_is_replaced_at_once_and_stays_trusted() -> None:
    lost = replace(FIRST, has_key=False)
    assert at(1, (lost,)) == Rotation(make=True, signer="", issue=True, trusted=("first",), keys=())


def test_after_a_long_sleep_all_is_made_anew() -> None:
    assert at(400) == Rotation(make=True, signer="", issue=True, trusted=(), keys=())


def test_of_two_that_nobody_knows_yet_the_older_one_signs() -> None:
    fresh = Authority("fresh", since=0.5 * DAY, until=360.5 * DAY)
    both = Rotation(make=False, signer="first", issue=False, trusted=("first", "fresh"), keys=("first", "fresh"))
    assert at(0.9, (fresh, FIRST)) == both


def test_authorities_of_a_short_life_are_announced_for_a_twelfth_of_it() -> None:
    assert (LIFETIMES.overlap, Lifetimes(authority=12.0).overlap) == (DAY, 1.0)


def test_over_five_years_whoever_learns_of_changes_within_a_day_believes_what_is_served() -> None:
    """A consumer believes the authorities of the day before, which is what it has at worst."""
    authorities: list[Authority] = []
    served: Certificate | None = None
    believed: list[frozenset[str]] = []
    made = issued = 0
    for step in range(1800):
        now = step * DAY
        due = rotation(now, authorities, served, NAMES, LIFETIMES)
        authorities = [replace(each, has_key=each.name in due.keys) for each in authorities if each.name in due.trusted]
        if due.make:
            made += 1
            authorities.append(Authority(f"a{made}", now, now + LIFETIMES.authority))
        if due.issue:
            issued += 1
            signer = next((each for each in authorities if each.name == due.signer), authorities[-1])
            assert signer.has_key
            served = Certificate(signer.name, now, min(now + LIFETIMES.certificate, signer.until), NAMES)
        assert served is not None
        assert served.until - now > 25 * DAY
        believed.append(frozenset(each.name for each in authorities if each.until > now))
        assert served.authority in believed[max(0, step - 1)]
    assert (made, issued) == (8, 31)
