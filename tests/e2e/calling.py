"""The operator called from this machine under the name that its certificate is for, which only pods can look up."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from dev.demo.lab import RELEASE, SYSTEM, Lab
from shardherd.client import AsyncConsumerClient

URL = f"https://{RELEASE}.{SYSTEM}.svc:8443"


class _Pinned(AbstractResolver):
    """Every name is this address."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        found = ResolveResult(
            hostname=host, host=self._address, port=port, family=socket.AF_INET, proto=0, flags=socket.AI_NUMERICHOST
        )
        return [found]

    async def close(self) -> None:
        """Nothing is open."""


def authorities(lab: Lab, namespace: str) -> Path:
    """A file of what the operator publishes in this namespace."""
    published = lab.kube.get("configmap", "shardherd-ca", "-n", namespace)["data"]["ca.crt"]
    file = lab.state / f"{namespace}-ca.crt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(published)
    return file


def client(lab: Lab, namespace: str, group: str, token: Callable[[], str]) -> AsyncConsumerClient:
    """A client of the operator that leads, through the real Service. Call it in the loop that uses it."""
    address = lab.kube.get("service", RELEASE, "-n", SYSTEM)["spec"]["clusterIP"]
    made = AsyncConsumerClient(URL, namespace, group, token, ca_file=authorities(lab, namespace))
    made._session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=_Pinned(address)), cookie_jar=aiohttp.DummyCookieJar()
    )
    return made
