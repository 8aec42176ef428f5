"""Certificates as they are: what a Secret holds is read, made and renewed, and what is damaged counts as not there."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from shardherd.adapters import certificates
from shardherd.adapters.certificates import AUTHORITY_KEYS, BUNDLE, CHAIN, KEY, SKEW, Data
from shardherd.core.planning.certificates import DAY, Lifetimes

NAMES = frozenset({"shardherd.system.svc", "10.0.0.1"})
LIFETIMES = Lifetimes(360 * DAY, 90 * DAY)
START = 1_800_000_000.0


@pytest.fixture(scope="module")
def made() -> Data:
    """A Secret that was empty until `START`."""
    return at(0, {})


def at(day: float, data: Data) -> Data:
    """The Secret after what was due on this day was done; it must have been something."""
    found = certificates.rotated(data, START + day * DAY, NAMES, LIFETIMES)
    assert found is not None
    return found


def authorities(data: Data) -> list[x509.Certificate]:
    return certificates.certificates(data[BUNDLE])


def leaf(data: Data) -> x509.Certificate:
    found = certificates.serving(data)
    assert found is not None
    return found


def test_an_empty_secret_gets_an_authority_and_a_certificate_by_it(made: Data) -> None:
    (authority,) = authorities(made)
    served = leaf(made)
    served.verify_directly_issued_by(authority)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(True, 0)
    assert served.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(False, None)
    names = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["shardherd.system.svc"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    assert (certificates.until(served), certificates.until(authority)) == (START + 90 * DAY, START + 360 * DAY)
    assert served.not_valid_before_utc.timestamp() == START - SKEW
    assert certificates.rotated(made, START, NAMES, LIFETIMES) is None


def test_a_renewed_certificate_has_a_key_of_its_own(made: Data) -> None:
    renewed = at(60, made)
    assert authorities(renewed) == authorities(made)
    assert leaf(renewed).public_key() != leaf(made).public_key()
    assert certificates.rotated(renewed, START + 60 * DAY, NAMES, LIFETIMES) is None


def test_the_authority_is_replaced_with_both_trusted_meanwhile(made: Data) -> None:
    (first,) = authorities(made)
    data = at(180, made)
    announced = at(240, data)
    second, kept = authorities(announced)
    assert kept == first
    leaf(announced).verify_directly_issued_by(first)
    signing = at(241, announced)
    leaf(signing).verify_directly_issued_by(second)
    assert authorities(signing) == [second, first]
    assert signing[AUTHORITY_KEYS].count(b"BEGIN") == 1
    assert authorities(at(361, at(310, signing))) == [second]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(
            {CHAIN: b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}, id="a certificate that is none"
        ),
        pytest.param({KEY: b""}, id="no key"),
        pytest.param({KEY: b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"}, id="a key that is none"),
    ],
)
def test_a_damaged_certificate_is_issued_anew(made: Data, damage: Data) -> None:
    mended = at(1, {**made, **damage})
    leaf(mended).verify_directly_issued_by(authorities(made)[0])
    assert authorities(mended) == authorities(made)


def test_a_lost_key_of_the_authority_brings_another_one_and_the_old_one_stays_trusted(made: Data) -> None:
    mended = at(1, {**made, AUTHORITY_KEYS: b""})
    second, first = authorities(mended)
    assert first == authorities(made)[0]
    leaf(mended).verify_directly_issued_by(second)


def test_a_key_of_another_certificate_does_not_serve(made: Data) -> None:
    assert certificates.serving({**made, KEY: at(0, {})[KEY]}) is None


def test_a_certificate_of_another_kind_is_served_as_well(made: Data) -> None:
    """What an issuer of cert-manager's makes by default."""
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    ours = leaf(made)
    builder = x509.CertificateBuilder(ours.subject, ours.subject, key.public_key(), 1)
    signed = builder.not_valid_before(ours.not_valid_before_utc).not_valid_after(ours.not_valid_after_utc)
    chain = signed.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    assert certificates.serving({CHAIN: chain, KEY: pem}) is not None
    assert certificates.context({CHAIN: chain, KEY: pem})


def test_a_bundle_is_the_same_whoever_writes_it(made: Data) -> None:
    other = authorities(at(10, {}))
    ours = authorities(made)
    assert certificates.bundle([*ours, *other, *ours]) == certificates.bundle([*other, *ours])
    assert certificates.certificates(certificates.bundle([*ours, *other]).encode()) == [*other, *ours]
