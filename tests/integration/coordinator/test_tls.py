"""TLS with a real Secret and real tokens: whom consumers believe, and rotation that neither side needs a restart for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shardherd.adapters import certificates
from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.core.model.nouns import GroupSpec
from shardherd.core.planning.certificates import DAY
from tests.harness.authorities import secret, write_bundle
from tests.harness.cluster import Names
from tests.integration.coordinator.private import Private, consumer
from tests.integration.coordinator.rig import Rig


@pytest.fixture
async def spec(rig: Rig, name: str, topic: str) -> GroupSpec:
    return await rig.group(name, (topic,), consumers=1)


@pytest.fixture
def private(rig: Rig, names: Names, tmp_path: Path) -> Private:
    return Private(rig, names.fresh("serving"), tmp_path)


async def test_a_heartbeat_goes_to_a_coordinator_that_is_believed_and_to_no_other(
    private: Private, spec: GroupSpec, tmp_path: Path
) -> None:
    await private.start(spec)
    ours = await consumer(private, spec, private.ca_file)
    async with ours.client:
        assert await ours.beat() == spec.settings.session_timeout

    stranger = await consumer(private, spec, write_bundle(tmp_path / "another.crt", secret()))
    async with stranger.client:
        with pytest.raises(CoordinatorUnavailableError, match=f"the coordinator at {private.url} is not believed"):
            await stranger.beat()
    ok = {"namespace": spec.identity.namespace, "consumergroup": spec.identity.name, "result": "ok"}
    assert private.coordinator.counted("shardherd_heartbeats_total", **ok) == 1


async def test_a_certificate_and_its_authority_are_replaced_under_a_consumer_that_notices_nothing(
    private: Private, spec: GroupSpec
) -> None:
    private.clock.late = 246 * DAY
    await private.start(spec)
    first = await private.served()
    private.clock.late = 2 * DAY
    await private.look()
    second = await private.served()
    both = certificates.certificates(private.ca_file.read_bytes())
    assert second.public_key() != first.public_key()
    assert second.issuer == first.issuer
    assert len(both) == 2
    second.verify_directly_issued_by(both[1])

    beating = await consumer(private, spec, private.ca_file)
    async with beating.client:
        await beating.beat()
        private.clock.late = 0.5 * DAY
        await private.look()
        third = await private.served()
        third.verify_directly_issued_by(both[0])
        for _ in range(2):
            await beating.beat()
            # The next request makes a connection of its own.
            await beating.client.close()


async def test_of_two_operators_that_start_at_once_one_writes_and_both_serve_the_same(
    private: Private, rig: Rig, names: Names, tmp_path: Path
) -> None:
    both = Private(rig, names.fresh("shared"), tmp_path)
    name = both.secret
    await rig.kubernetes.api.acall("POST", f"/api/v1/namespaces/{rig.namespace}/secrets", {"metadata": {"name": name}})
    one, other = both.operator(), both.operator()
    assert list(await asyncio.gather(one.look(), other.look())) == ["", ""]
    assert one.bundle() == other.bundle() != ""
    assert one.until == other.until
    assert await one.look() == ""
    assert one.bundle() == other.bundle()
