"""No pod that the operator has made has the operator's own rights, whatever its group declares."""

from __future__ import annotations

from typing import Any

import pytest

from shardherd.controller.declared import InvalidGroupError
from shardherd.controller.guard import Guard
from shardherd.controller.manifests import Manifests
from tests.unit.controller.builders import resource
from tests.unit.controller.fakes import KEY, Bench
from tests.unit.core.planning.builders import IDENTITY, consumers, shards, view

BESIDE = Manifests("https://shardherd.shop.svc:8443", "shardherd", guard=Guard("shop", "shardherd", "shardherd-tls"))
"""An operator in the namespace of the group."""

ELSEWHERE = Manifests("https://shardherd.system.svc:8443", "shardherd", guard=Guard("system", "shardherd", "shardherd-tls"))

ACCOUNT = "names the service account 'shardherd', which is the operator's own: use another one, for example shardherd-spark"
SECRET = "uses the Secret 'shardherd-tls', which has the operator's own keys: use another one"


def pod(**spec: Any) -> dict[str, Any]:
    return {"template": {"spec": spec}}


def volume(**source: Any) -> dict[str, Any]:
    return pod(volumes=[{"name": "mine", **source}])


def container(kind: str = "containers", **field: Any) -> dict[str, Any]:
    return pod(**{kind: [{"name": "driver", **field}]})


KEY_REFERENCE = {"secretKeyRef": {"name": "shardherd-tls", "key": "ca.key"}}
ENVIRONMENT = [{"name": "MINE", "valueFrom": KEY_REFERENCE}]

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "the account": ({"application": {"serviceAccountName": "shardherd"}}, ACCOUNT),
    "the executors' account": ({"application": {"executor": {"serviceAccountName": "shardherd"}}}, ACCOUNT),
    "the account of a template": ({"application": {"driver": pod(serviceAccountName="shardherd")}}, ACCOUNT),
    "the account by its old name": ({"application": {"driver": pod(serviceAccount="shardherd")}}, ACCOUNT),
    "the account of the executors' template": ({"application": {"executor": pod(serviceAccountName="shardherd")}}, ACCOUNT),
    "a volume": ({"application": {"driver": volume(secret={"secretName": "shardherd-tls"})}}, SECRET),
    "a projected volume": (
        {"application": {"driver": volume(projected={"sources": [{"secret": {"name": "shardherd-tls"}}]})}},
        SECRET,
    ),
    "a volume of a driver of storage": (
        {"application": {"driver": volume(csi={"driver": "x", "nodePublishSecretRef": {"name": "shardherd-tls"}})}},
        SECRET,
    ),
    "a volume of executors": ({"application": {"executor": volume(secret={"secretName": "shardherd-tls"})}}, SECRET),
    "a variable": ({"application": {"env": ENVIRONMENT}}, SECRET),
    "a variable of a template": ({"application": {"driver": container(env=ENVIRONMENT)}}, SECRET),
    "a variable of an init container": ({"application": {"driver": container("initContainers", env=ENVIRONMENT)}}, SECRET),
    "all its variables": ({"application": {"driver": container(envFrom=[{"secretRef": {"name": "shardherd-tls"}}])}}, SECRET),
    "a pull secret": ({"application": {"imagePullSecrets": [{"name": "shardherd-tls"}]}}, SECRET),
    "credentials of Kafka": (
        {
            "source": {
                "kafka": {"security": {"protocol": "SSL", "tls": {"caSecretRef": {"name": "shardherd-tls", "key": "ca.key"}}}}
            }
        },
        SECRET,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_beside_the_operator_is_refused(name: str) -> None:
    spec, said = REFUSED[name]
    with pytest.raises(InvalidGroupError) as refused:
        BESIDE.check(resource(**spec))
    assert str(refused.value) == f"ConsumerGroup shop/clicks {said}"


@pytest.mark.parametrize("name", REFUSED)
def test_elsewhere_it_is_a_name_like_any_other(name: str) -> None:
    ELSEWHERE.check(resource(**REFUSED[name][0]))


def test_other_accounts_and_secrets_are_the_authors_business() -> None:
    BESIDE.check(resource(application={"serviceAccountName": "mine", "driver": volume(secret={"secretName": "mine"})}))


async def test_its_condition_says_so_and_nothing_is_made() -> None:
    bench = Bench(BESIDE)
    made = resource(application={"serviceAccountName": "shardherd"})
    bench.cluster.put("ConsumerGroup", made)
    bench.controller.saw_group(KEY, made, gone=False)
    bench.coordination.pictures[IDENTITY] = view(shards(8), consumers=consumers(4, 4))
    await bench.reconcile()
    assert bench.cluster.writes == ["status clicks"]
    messages = {condition["message"] for condition in bench.status()["conditions"]}
    assert any(ACCOUNT in message for message in messages)
