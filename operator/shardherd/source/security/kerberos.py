"""SASL GSSAPI (Kerberos): kafka-python's mechanism, with tickets that are got beforehand and not while it authenticates.

Made by `credentials` for the connections of one cluster. The ticket of the principal in the keytab, and one for each broker,
are got from the KDC in the keeper's thread and kept in memory, so that no connection waits for it. Where that is says the pod's
krb5.conf, or the DNS. The package gssapi is in images that are built with it; others say so, only if it is needed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.abc import SaslMechanism
from kafka.net.sasl.gssapi import SaslMechanismGSSAPI

from shardherd.clock import boot_time
from shardherd.core.model.security import GSSAPI
from shardherd.source.kafka_python.private import BegunGssapi
from shardherd.source.security.credential_errors import CredentialsError
from shardherd.source.security.credential_keeper import Fresh, Keeper
from shardherd.source.security.secret_file import in_memory

AGAIN = 5.0
"""Seconds after which a broker is asked for again that the KDC did not know."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What authenticates us: the credentials, and for each broker's host its name, or why there is no ticket for it."""

    credentials: Any = field(repr=False)
    names: dict[str, Any]
    errors: dict[str, str]
    got_at: float


class Tickets:
    """Tickets of the principal that `principal` gives with its keytab, for services of this name."""

    def __init__(
        self, service: str, principal: Callable[[], tuple[str, bytes]], monotonic: Callable[[], float] = boot_time
    ) -> None:
        self.service = service
        self.keeper = Keeper(self._fetch)
        self._principal = principal
        self._monotonic = monotonic
        self._hosts: frozenset[str] = frozenset()
        self._cache = f"MEMORY:shardherd-{uuid.uuid4().hex}"

    def enough_for(self, host: str) -> Callable[[Ticket], bool]:
        """Have a ticket for that host, too, and say whether one has it."""
        self._hosts |= {host}

        def enough(ticket: Ticket) -> bool:
            failed = host in ticket.errors and self._monotonic() - ticket.got_at < AGAIN
            return host in ticket.names or failed

        return enough

    def to(self, host: str) -> tuple[Any, Any]:
        """The name of the broker's service at this host, and the credentials to reach it with. Raises CredentialsError."""
        ticket = self.keeper.current()
        if host not in ticket.names:
            raise CredentialsError(ticket.errors.get(host, f"there is no ticket for {self.service}@{host} yet"))
        return ticket.names[host], ticket.credentials

    def _fetch(self) -> Fresh[Ticket]:
        try:
            import gssapi
        except (ImportError, OSError) as error:
            raise CredentialsError(
                "GSSAPI needs the Python package gssapi and Kerberos' libraries: build the image with EXTRAS=kerberos"
            ) from error
        user, keytab = self._principal()
        with in_memory(keytab) as path:
            try:
                name = gssapi.Name(user, gssapi.NameType.kerberos_principal)
                store = {"client_keytab": f"FILE:{path}", "ccache": self._cache}
                credentials = gssapi.Credentials(name=name, usage="initiate", store=store)
                # It asks the KDC when it is asked how long the ticket is good.
                seconds = float(credentials.lifetime)
            except gssapi.exceptions.GSSError as error:
                raise CredentialsError(
                    f"no ticket for {user!r} ({_said(error)}): check the principal, its keytab, and where krb5.conf says that"
                    " the KDC is"
                ) from error
            return Fresh(self._for_brokers(gssapi, credentials), seconds)

    def _for_brokers(self, gssapi: Any, credentials: Any) -> Ticket:
        names: dict[str, Any] = {}
        errors: dict[str, str] = {}
        for host in sorted(self._hosts):
            try:
                service = gssapi.Name(f"{self.service}@{host}", gssapi.NameType.hostbased_service)
                name = service.canonicalize(gssapi.MechType.kerberos)
                # What begins a context with the broker gets the ticket and keeps it; this context itself is not used.
                gssapi.SecurityContext(name=name, creds=credentials, usage="initiate").step(None)
                names[host] = name
            except gssapi.exceptions.GSSError as error:
                errors[host] = (
                    f"no ticket for {self.service}@{host} ({_said(error)}): check that the KDC has a principal of this name"
                )
        return Ticket(credentials, names, errors, self._monotonic())


def _said(error: BaseException) -> str:
    return " ".join(str(error).split())


def gssapi_mechanism(**config: Any) -> SaslMechanism:
    """kafka-python's mechanism with our tickets; for whoever gives none of ours it is as it was."""
    tickets = config.get("sasl_oauth_token_provider")
    if not isinstance(tickets, Tickets):
        return SaslMechanismGSSAPI(**config)
    import gssapi

    host = config["host"]
    name, credentials = tickets.to(host)
    context = gssapi.SecurityContext(name=name, creds=credentials, usage="initiate")
    return BegunGssapi(name, f"{tickets.service}@{host}", context)


register_sasl_mechanism(GSSAPI, gssapi_mechanism, overwrite=True)
