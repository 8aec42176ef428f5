"""For which brokers there are tickets, and what is said where there is none. The library of Kerberos is played."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from shardherd.core.model.security import Security
from shardherd.source.security.credential_errors import CredentialsError
from shardherd.source.security.credentials import ClientSettings, Credentials
from shardherd.source.security.kerberos import AGAIN, Tickets, gssapi_mechanism
from tests.harness.simulated_clock import SimulatedClock

KEYTAB = b"\x05\x02 keys of clicks"
SECURITY = Security("SASL_PLAINTEXT", "GSSAPI", username="clicks@EXAMPLE", keytab_file="/keytab")


class GSSError(Exception):
    """What the library raises."""


class Library(ModuleType):
    """Plays `gssapi`: a KDC that knows `hosts`, and notes which tickets it gave, and to whose keytab."""

    def __init__(self) -> None:
        super().__init__("gssapi")
        library = self
        self.hosts = {"broker-1", "broker-2"}
        self.given: list[str] = []
        self.keytabs: list[bytes] = []
        self.exceptions = SimpleNamespace(GSSError=GSSError)
        self.NameType = SimpleNamespace(kerberos_principal="principal", hostbased_service="service")
        self.MechType = SimpleNamespace(kerberos="krb5")

        class Name(str):
            __slots__ = ()

            def __new__(cls, text: str, _kind: str) -> Name:
                return super().__new__(cls, text)

            def canonicalize(self, _mechanism: str) -> Name:
                return self

        class Tgt:
            def __init__(self, *, name: Name, usage: str, store: dict[str, str]) -> None:
                assert (name, usage) == ("clicks@EXAMPLE", "initiate")
                assert store["ccache"].startswith("MEMORY:")
                library.keytabs.append(Path(store["client_keytab"].removeprefix("FILE:")).read_bytes())
                self.lifetime = 3600

        class SecurityContext:
            def __init__(self, *, name: Name, creds: Tgt, usage: str) -> None:
                self.host = name.partition("@")[2]

            def step(self, _token: bytes | None) -> bytes:
                if self.host not in library.hosts:
                    raise GSSError("Server not found\nin Kerberos database")
                library.given.append(self.host)
                return b"for " + self.host.encode()

        self.Name, self.Credentials, self.SecurityContext = Name, Tgt, SecurityContext


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setitem(sys.modules, "gssapi", made)
    return made


def want(tickets: Tickets, host: str) -> bool:
    """Want to connect to that host, as a connection does: whether nothing had to be fetched for it."""
    tickets.keeper._start = lambda _: None
    known = tickets.keeper.ready(lambda: None, tickets.enough_for(host))
    tickets.keeper.step()
    return known


def test_each_broker_gets_a_ticket_beforehand_and_authentication_asks_nobody(library: Library) -> None:
    settings = ClientSettings(SECURITY, lambda: Credentials("clicks@EXAMPLE", keytab=KEYTAB))
    tickets: Any = settings()["sasl_oauth_token_provider"]

    assert [want(tickets, host) for host in ("broker-1", "broker-1", "broker-2", "broker-1")] == [False, True, False, True]
    assert library.keytabs == [KEYTAB, KEYTAB]
    given = list(library.given)
    mechanism = gssapi_mechanism(host="broker-2", **settings())

    assert (mechanism.auth_id, mechanism.auth_bytes()) == ("kafka@broker-2", b"for broker-2")
    assert library.given == [*given, "broker-2"], "by the ticket that is there"
    assert "keys of clicks" not in repr(vars(settings)) + repr(tickets.keeper.current())


def test_a_broker_that_the_kdc_does_not_know_is_named_and_asked_for_again_and_the_others_are_reached(library: Library) -> None:
    clock = SimulatedClock()
    tickets = Tickets("kafka", lambda: ("clicks@EXAMPLE", KEYTAB), clock.now)
    want(tickets, "broker-1")
    want(tickets, "broker-3")

    with pytest.raises(
        CredentialsError, match=r"no ticket for kafka@broker-3 \(Server not found in Kerberos database\): check"
    ):
        tickets.to("broker-3")
    assert tickets.to("broker-1")[0] == "kafka@broker-1"
    assert want(tickets, "broker-3"), "its failure is known"
    library.hosts.add("broker-3")
    clock.advance(AGAIN)

    assert not want(tickets, "broker-3")
    assert tickets.to("broker-3")[0] == "kafka@broker-3"


def test_a_broker_that_nobody_asked_for_has_no_ticket(library: Library) -> None:
    tickets = Tickets("kafka", lambda: ("clicks@EXAMPLE", KEYTAB))
    want(tickets, "broker-1")

    with pytest.raises(CredentialsError, match="there is no ticket for kafka@broker-2 yet"):
        tickets.to("broker-2")


def test_without_the_library_it_is_said_how_an_image_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    tickets = Tickets("kafka", lambda: ("clicks@EXAMPLE", KEYTAB))
    want(tickets, "broker-1")

    with pytest.raises(
        CredentialsError, match=r"GSSAPI needs the Python package gssapi .*: build the image with EXTRAS=kerberos"
    ):
        tickets.to("broker-1")


def test_a_principal_without_a_ticket_is_named(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(**_: object) -> None:
        raise GSSError("Cannot contact any KDC")

    monkeypatch.setattr(library, "Credentials", away)
    tickets = Tickets("kafka", lambda: ("clicks@EXAMPLE", KEYTAB))
    want(tickets, "broker-1")

    with pytest.raises(
        CredentialsError, match=r"no ticket for 'clicks@EXAMPLE' \(Cannot contact any KDC\): check the principal"
    ):
        tickets.to("broker-1")
