"""X.509 in PEM: reads what a Secret holds, makes authorities and serving certificates, and turns one into a TLS context.

Called by `adapters.kubernetes.serving`. When something is due is decided by `core.planning.certificates`. Raises nothing for
damaged input: what cannot be read counts as not there.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shardherd.core.planning.certificates import Authority, Certificate, Lifetimes, rotation
from shardherd.source.security.secret_file import in_memory

CHAIN, KEY, BUNDLE, AUTHORITY_KEYS = "tls.crt", "tls.key", "ca.crt", "ca.key"
"""Keys of the Secret: as cert-manager names them, and the keys of our own authorities."""

SKEW = 300.0
"""Seconds by which a certificate is valid earlier than it was made, for clocks that go late."""

_PEM = re.compile(rb"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----\s?", re.DOTALL)

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
"""Kinds of keys that a Secret may hold; ours are of the first."""

Data = Mapping[str, bytes]
"""What a Secret holds."""


@dataclass(frozen=True, slots=True)
class Made:
    """One certificate with its key, if we have it."""

    certificate: x509.Certificate
    key: PrivateKey | None

    @property
    def name(self) -> str:
        """Its fingerprint."""
        return fingerprint(self.certificate)


def certificates(pem: bytes) -> list[x509.Certificate]:
    """The certificates that a PEM file holds; those that cannot be read are left out."""
    found = []
    for block in _blocks(pem, "CERTIFICATE"):
        try:
            found.append(x509.load_pem_x509_certificate(block))
        except ValueError:
            continue
    return found


def bundle(trusted: Iterable[x509.Certificate]) -> str:
    """A PEM file of these, each once, in an order that does not depend on theirs: the one that ends last comes first."""
    unique = {fingerprint(each): each for each in trusted}
    ordered = sorted(unique.items(), key=lambda item: (-item[1].not_valid_after_utc.timestamp(), item[0]))
    return "".join(_pem(each).decode() for _, each in ordered)


def fingerprint(certificate: x509.Certificate) -> str:
    """The SHA-256 of a certificate, in hexadecimal."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def until(certificate: x509.Certificate) -> float:
    """When it ends, in wall seconds."""
    return certificate.not_valid_after_utc.timestamp()


def trusted_until(leaf: x509.Certificate, authorities: Iterable[x509.Certificate]) -> float:
    """When who trusts these authorities stops believing the leaf, in wall seconds; 0 without any.

    The authority that signed it tells. If it was signed by way of others that are not among them, the last one does.
    """
    known = list(authorities)
    return max(map(until, [each for each in known if _signed(leaf, each)] or known), default=0.0)


def serving(data: Data) -> x509.Certificate | None:
    """The serving certificate of a Secret; None unless it is there together with its key."""
    chain = certificates(data.get(CHAIN, b""))
    key = next(iter(_keys(data.get(KEY, b""))), None)
    return chain[0] if chain and key is not None and _belong(chain[0], key) else None


def context(data: Data) -> ssl.SSLContext:
    """What to serve with the Secret's certificate. Raises ssl.SSLError if certificate and key do not fit."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    with in_memory(data[KEY].rstrip() + b"\n" + data[CHAIN]) as path:
        made.load_cert_chain(path)
    return made


def rotated(data: Data, now: float, names: frozenset[str], lifetimes: Lifetimes) -> Data | None:
    """What a Secret that holds `data` should hold at `now` (wall seconds); None if that is what it holds."""
    keys = _keys(data.get(AUTHORITY_KEYS, b""))
    known = [Made(each, _key_of(each, keys)) for each in certificates(data.get(BUNDLE, b""))]
    leaf = serving(data)
    due = rotation(
        now, [_authority(each) for each in known], None if leaf is None else _certificate(leaf, known), names, lifetimes
    )
    trusted = [each for each in known if each.name in due.trusted]
    if not due.make and not due.issue and len(trusted) == len(known):
        return None
    if due.make:
        trusted.append(make_authority(now, lifetimes.authority))
    keep = {*due.keys, *(each.name for each in trusted[-1:] if due.make)}
    signer = next((each for each in trusted if each.name == due.signer), trusted[-1])
    new_data = {
        BUNDLE: bundle(each.certificate for each in trusted).encode(),
        AUTHORITY_KEYS: b"".join(_key_pem(each.key) for each in trusted if each.key is not None and each.name in keep),
        CHAIN: data.get(CHAIN, b""),
        KEY: data.get(KEY, b""),
    }
    if due.issue:
        issued = issue(signer, now, names, lifetimes.certificate)
        assert issued.key is not None
        new_data |= {CHAIN: _pem(issued.certificate), KEY: _key_pem(issued.key)}
    return new_data


def make_authority(now: float, lifetime: float) -> Made:
    """A new authority with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shardherd coordinator")])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(name, name, key.public_key(), now, now + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Made(builder.sign(key, hashes.SHA256()), key)


def issue(signer: Made, now: float, names: frozenset[str], lifetime: float) -> Made:
    """A new serving certificate for these names and addresses; it ends no later than its authority."""
    assert isinstance(signer.key, ec.EllipticCurvePrivateKey), "an authority without a key of ours was chosen to sign"
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, min(names, key=len)[:64])])
    authority = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
        signer.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    )
    builder = (
        _builder(subject, signer.certificate.subject, key.public_key(), now, min(now + lifetime, until(signer.certificate)))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general(each) for each in sorted(names)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(authority, critical=False)
    )
    return Made(builder.sign(signer.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, since: float, end: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(since - SKEW))
        .not_valid_after(_time(end))
    )


def _authority(made: Made) -> Authority:
    since = made.certificate.not_valid_before_utc.timestamp() + SKEW
    return Authority(made.name, since, until(made.certificate), made.key is not None)


def _certificate(leaf: x509.Certificate, known: Iterable[Made]) -> Certificate:
    by = next((each.name for each in known if _signed(leaf, each.certificate)), "")
    return Certificate(by, leaf.not_valid_before_utc.timestamp() + SKEW, until(leaf), _names(leaf))


def _signed(leaf: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names(leaf: x509.Certificate) -> frozenset[str]:
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(str(each.value) for each in found)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _keys(pem: bytes) -> list[PrivateKey]:
    found = []
    for block in _blocks(pem, "PRIVATE KEY"):
        try:
            key = serialization.load_pem_private_key(block, None)
        except (ValueError, TypeError):
            continue
        if isinstance(key, PrivateKey):
            found.append(key)
    return found


def _key_of(certificate: x509.Certificate, keys: Iterable[PrivateKey]) -> PrivateKey | None:
    return next((key for key in keys if _belong(certificate, key)), None)


def _belong(certificate: x509.Certificate, key: PrivateKey) -> bool:
    return bool(certificate.public_key() == key.public_key())


def _blocks(pem: bytes, kind: str) -> list[bytes]:
    return [match[0] for match in _PEM.finditer(pem) if match[1].decode().endswith(kind)]


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: PrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _time(wall: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(wall), datetime.UTC)
