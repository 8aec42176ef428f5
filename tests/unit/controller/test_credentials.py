"""How a pod gets its group's Kafka credentials."""

import json
from typing import Any

from shardherd.controller.declared import declared, template_hash
from shardherd.core.model.security import NO_SECURITY, KafkaSecurity, OAuth, SecretKey, Security
from tests.unit.controller.builders import MANIFESTS, resource

SCRAM = {
    "protocol": "SASL_SSL",
    "sasl": {
        "mechanism": "SCRAM-SHA-512",
        "secretRef": {"name": "user", "usernameKey": "username", "passwordKey": "secret-word"},
    },
    "tls": {"caSecretRef": {"name": "authority", "key": "ca.crt"}, "verifyHostname": True},
}
MUTUAL = {
    "protocol": "SSL",
    "tls": {
        "certificateSecretRef": {"name": "app", "certificateKey": "tls.crt", "privateKeyKey": "tls.key"},
        "verifyHostname": False,
    },
}
OAUTH = {
    "protocol": "SASL_SSL",
    "sasl": {
        "mechanism": "OAUTHBEARER",
        "secretRef": {"name": "client", "usernameKey": "id", "passwordKey": "secret"},
        "oauth": {
            "tokenEndpoint": "https://issuer.example/token",
            "scope": "kafka",
            "extensions": [{"name": "poolId", "value": "b"}, {"name": "logicalCluster", "value": "a"}],
            "caSecretRef": {"name": "issuer", "key": "ca.crt"},
        },
    },
}
TOKENS = OAuth("https://issuer.example/token", "kafka", (("logicalCluster", "a"), ("poolId", "b")))


def group(security: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return resource(source={"kafka": {"security": security}}, **spec)


def files(volume: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """File -> Secret and key, as the volume has them."""
    return {
        item["path"]: (source["secret"]["name"], item["key"])
        for source in volume["projected"]["sources"]
        for item in source["secret"]["items"]
    }


def test_what_a_group_says_of_its_secrets_is_read() -> None:
    assert declared(group(SCRAM)).kafka.security == KafkaSecurity(
        protocol="SASL_SSL",
        mechanism="SCRAM-SHA-512",
        username_key=SecretKey("user", "username"),
        password_key=SecretKey("user", "secret-word"),
        ca_key=SecretKey("authority", "ca.crt"),
    )
    assert declared(group(MUTUAL)).kafka.security == KafkaSecurity(
        protocol="SSL",
        certificate_key=SecretKey("app", "tls.crt"),
        private_key=SecretKey("app", "tls.key"),
        verify_hostname=False,
    )
    assert declared(resource()).kafka.security == NO_SECURITY
    named = {**SCRAM, "sasl": {**SCRAM["sasl"], "username": "clicks-app"}}  # type: ignore[dict-item]
    assert declared(group(named)).kafka.security.username == "clicks-app"
    assert declared(group(named)).kafka.security.username_key is None


def test_drivers_and_executors_have_the_keys_as_files_and_are_told_where() -> None:
    template = MANIFESTS.stateful_set(group(SCRAM, application={"executor": {"instances": 2}}), 1)["spec"]["template"]["spec"]
    container = template["containers"][0]
    environment = {item["name"]: item.get("value", "") for item in container["env"]}
    executor = json.loads(environment["SHARDHERD_EXECUTOR_TEMPLATE"])["spec"]

    for pod in (template, executor):
        (volume,) = [each for each in pod["volumes"] if each["name"] == "kafka-credentials"]
        assert files(volume) == {
            "username": ("user", "username"),
            "password": ("user", "secret-word"),
            "ca.crt": ("authority", "ca.crt"),
        }
        assert volume["projected"]["defaultMode"] == 0o440
        assert {
            "name": "kafka-credentials",
            "mountPath": "/var/run/secrets/shardherd-kafka",
            "readOnly": True,
        } in pod["containers"][0]["volumeMounts"]
    assert Security.from_dict(json.loads(environment["SHARDHERD_KAFKA_SECURITY"])) == Security(
        "SASL_SSL",
        "SCRAM-SHA-512",
        username_file="/var/run/secrets/shardherd-kafka/username",
        password_file="/var/run/secrets/shardherd-kafka/password",
        ca_file="/var/run/secrets/shardherd-kafka/ca.crt",
    )


def test_who_aws_says_that_a_pod_is_needs_no_secret() -> None:
    said = {"protocol": "SASL_SSL", "sasl": {"mechanism": "AWS_MSK_IAM", "aws": {"region": "eu-west-1"}}}
    assert declared(group(said)).kafka.security == KafkaSecurity("SASL_SSL", "AWS_MSK_IAM", region="eu-west-1")
    pod = MANIFESTS.stateful_set(group(said), 1)["spec"]["template"]["spec"]
    environment = {item["name"]: item.get("value", "") for item in pod["containers"][0]["env"]}

    assert [each for each in pod["volumes"] if each["name"] == "kafka-credentials"] == []
    security = Security.from_dict(json.loads(environment["SHARDHERD_KAFKA_SECURITY"]))
    assert security == Security("SASL_SSL", "AWS_MSK_IAM", region="eu-west-1")


def test_a_principal_has_its_keytab_as_a_file() -> None:
    kerberos = {"serviceName": "broker", "keytabSecretRef": {"name": "principal", "key": "clicks.keytab"}}
    said = {"protocol": "SASL_PLAINTEXT", "sasl": {"mechanism": "GSSAPI", "username": "clicks@EXAMPLE", "kerberos": kerberos}}
    assert declared(group(said)).kafka.security == KafkaSecurity(
        "SASL_PLAINTEXT",
        "GSSAPI",
        username="clicks@EXAMPLE",
        keytab_key=SecretKey("principal", "clicks.keytab"),
        service="broker",
    )
    pod = MANIFESTS.stateful_set(group(said), 1)["spec"]["template"]["spec"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "kafka-credentials"]
    environment = {item["name"]: item.get("value", "") for item in pod["containers"][0]["env"]}

    assert files(volume) == {"keytab": ("principal", "clicks.keytab")}
    assert Security.from_dict(json.loads(environment["SHARDHERD_KAFKA_SECURITY"])) == Security(
        "SASL_PLAINTEXT",
        "GSSAPI",
        username="clicks@EXAMPLE",
        keytab_file="/var/run/secrets/shardherd-kafka/keytab",
        service="broker",
    )


def test_a_group_without_security_has_no_volume_and_the_pods_that_it_had() -> None:
    plain = MANIFESTS.stateful_set(resource(), 1)["spec"]["template"]["spec"]

    assert "kafka-credentials" not in json.dumps(plain)
    assert "SHARDHERD_KAFKA_SECURITY" not in json.dumps(plain)
    assert template_hash(group(SCRAM)["spec"]) != template_hash(resource()["spec"])
    assert template_hash(group(SCRAM)["spec"]) != template_hash(group(MUTUAL)["spec"])


def test_a_client_of_an_issuer_is_told_where_its_tokens_come_from_and_has_its_secret_as_a_file() -> None:
    assert declared(group(OAUTH)).kafka.security == KafkaSecurity(
        protocol="SASL_SSL",
        mechanism="OAUTHBEARER",
        username_key=SecretKey("client", "id"),
        password_key=SecretKey("client", "secret"),
        oauth=TOKENS,
        issuer_ca_key=SecretKey("issuer", "ca.crt"),
    )
    pod = MANIFESTS.stateful_set(group(OAUTH), 1)["spec"]["template"]["spec"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "kafka-credentials"]
    environment = {item["name"]: item.get("value", "") for item in pod["containers"][0]["env"]}

    assert files(volume) == {
        "username": ("client", "id"),
        "password": ("client", "secret"),
        "issuer-ca.crt": ("issuer", "ca.crt"),
    }
    assert Security.from_dict(json.loads(environment["SHARDHERD_KAFKA_SECURITY"])) == Security(
        "SASL_SSL",
        "OAUTHBEARER",
        username_file="/var/run/secrets/shardherd-kafka/username",
        password_file="/var/run/secrets/shardherd-kafka/password",
        oauth=TOKENS,
        issuer_ca_file="/var/run/secrets/shardherd-kafka/issuer-ca.crt",
    )
