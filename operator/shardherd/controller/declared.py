"""Reads a ConsumerGroup resource into what the core plans with, and hashes the part that pods are made from.

The API server has validated the resource by its schema and filled in the defaults, so only what a schema cannot promise is
checked here. Raises InvalidGroupError, which names the field, for a resource that an older schema let in.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from shardherd.core.model.gauges import QUANTITIES, Marks, Watermarks
from shardherd.core.model.nouns import (
    GroupIdentity,
    GroupSettings,
    GrowthCutover,
    KafkaSource,
    KinesisSource,
    Reset,
    ResetTo,
    ShardId,
    Weights,
    Zones,
)
from shardherd.core.model.security import KafkaSecurity, OAuth, SecretKey
from shardherd.core.model.times import rfc3339, seconds_since_1970
from shardherd.core.planning.listing import identity_of
from shardherd.core.planning.observed import (
    Declared,
    LagScaling,
    Pauses,
    RolloutSettings,
    RolloutStrategy,
    Scaling,
    ScalingMode,
)

_PART = re.compile(r"([0-9]+)(ms|h|m|s)")
_MARK = re.compile(rf"(?P<number>[0-9]+)(?P<unit>%|{'|'.join(QUANTITIES)})")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


PAUSES = {
    "reconcile": "shardherd.dev/pause-reconcile",
    "rebalance": "shardherd.dev/pause-rebalance",
    "scale_in": "shardherd.dev/pause-scale-in",
    "scale_out": "shardherd.dev/pause-scale-out",
}
"""Annotations of a group that, while they are `true`, keep something from being done."""

_NO_KAFKA: Mapping[str, Any] = {"growth": {"cutover": "Never", "settle": "0s"}}
"""Where the source is another one: shards name their parents there, and nothing follows from how many there are."""

SHARDS_PER_CONSUMER = 4
"""Where `spec.scaling.shardsPerConsumer` is not given: the schema cannot say it, as the field is wrong in other modes."""


class InvalidGroupError(Exception):
    """A ConsumerGroup resource that cannot be read. The message names the field and the value."""


def seconds(text: str) -> float:
    """A duration such as `1m30s` in seconds. Raises InvalidGroupError."""
    parts = _PART.findall(text)
    if not text or "".join(number + unit for number, unit in parts) != text:
        raise InvalidGroupError(f'"{text}" is not a duration: write it like 3s, 1m30s or 500ms')
    return sum(int(number) * _UNITS[unit] for number, unit in parts)


def _time(field: str, text: str | None) -> float | None:
    """In seconds since 1970, None if the field is not given. Raises InvalidGroupError."""
    if text is None:
        return None
    try:
        found = seconds_since_1970(text)
        # Messages show it in UTC, where it may be of a year that there is not.
        rfc3339(found)
    except ValueError as error:
        raise InvalidGroupError(
            f'{field} is "{text}", which is no time: {error}; write one that there is, with its zone, such as'
            " 2026-01-31T12:00:00Z"
        ) from error
    return found


def compact(value: object) -> str:
    """A JSON value as text, which does not depend on the order of keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(value: object) -> str:
    """A short hash of a JSON value."""
    return hashlib.sha256(compact(value).encode()).hexdigest()[:16]


def declared(resource: Mapping[str, Any]) -> Declared:
    """What this resource declares. Raises InvalidGroupError."""
    identity = identity_of(resource)
    try:
        return _declared(identity, resource["metadata"], resource["spec"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidGroupError(f"ConsumerGroup {identity} cannot be read: {type(error).__name__} {error}") from error


def pauses(metadata: Mapping[str, Any]) -> Pauses:
    """What the annotations of a group ask to leave alone for now."""
    annotations = metadata.get("annotations") or {}
    return Pauses(**{name: annotations.get(annotation) == "true" for name, annotation in PAUSES.items()})


def watermarks(given: Mapping[str, Any]) -> Watermarks:
    """How full a consumer may be. Raises InvalidGroupError."""
    return Watermarks(**{kind: _marks(f"spec.watermarks.{kind}", of) for kind, of in given.items()})


def _marks(field: str, given: Mapping[str, Any]) -> Marks:
    texts = (given["low"], given["high"], given["flood"])
    matches = [_MARK.fullmatch(text) for text in texts]
    found = [(int(each["number"]), each["unit"]) for each in matches if each is not None]
    free = [unit != "%" for _, unit in found]
    if len(found) != len(texts) or len(set(free)) != 1:
        raise InvalidGroupError(
            f"{field} is low {texts[0]}, high {texts[1]} and flood {texts[2]}: write all three as percent that are used, such"
            " as 85%, or as bytes that are free, such as 10Gi"
        )
    low, high, flood = (number * (1 if unit == "%" else QUANTITIES[unit]) for number, unit in found)
    if not (low > high > flood if free[0] else low < high < flood):
        raise InvalidGroupError(
            f"{field} is low {texts[0]}, high {texts[1]} and flood {texts[2]}: high must be fuller than low, and flood"
            " fuller than high"
        )
    return Marks(low, high, flood, free=free[0])


def _scaling(scaling: Mapping[str, Any]) -> Scaling:
    lag, usual = scaling.get("lag", {}), LagScaling()
    return Scaling(
        mode=ScalingMode(scaling["mode"]),
        min_replicas=scaling["minReplicas"],
        max_replicas=scaling["maxReplicas"],
        shards_per_consumer=scaling.get("shardsPerConsumer", SHARDS_PER_CONSUMER),
        stabilization_window=seconds(scaling["stabilizationWindow"]),
        lag=LagScaling(
            target_catchup=float(lag.get("targetCatchupSeconds", usual.target_catchup)),
            max_step=lag.get("maxStep", usual.max_step),
        ),
        recommend_only=scaling["recommendOnly"],
    )


def _declared(identity: GroupIdentity, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> Declared:
    application = spec["application"]
    kafka = spec["source"].get("kafka", _NO_KAFKA)
    return Declared(
        identity=identity,
        generation=int(metadata.get("generation", 0)),
        source=_kafka(identity, spec) if "kafka" in spec["source"] else _kinesis(spec["source"]["kinesis"]),
        settings=GroupSettings(
            ordered=spec["ordered"],
            assignor=spec["assignor"],
            zones=Zones(spec["assignorOptions"]["zones"]),
            weights=Weights(spec["assignorOptions"]["weights"]),
            heartbeat_interval=seconds(spec["heartbeatInterval"]),
            session_timeout=seconds(spec["sessionTimeout"]),
            coordinator_loss_limit=seconds(spec["coordinatorLossLimit"]),
            rejoin_grace=seconds(spec["rejoinGrace"]),
            release_timeout=seconds(spec["releaseTimeout"]),
            progress_timeout=seconds(spec["progressTimeout"]),
            sink_timeout=seconds(spec["sinkTimeout"]),
            initial_assignment_delay=seconds(spec["initialAssignmentDelay"]),
            paused=spec["paused"],
            cells=spec["state"]["cells"] if "state" in spec else 0,
            growth_cutover=GrowthCutover(kafka["growth"]["cutover"]),
            growth_settle=seconds(kafka["growth"]["settle"]),
            watermarks=watermarks(spec.get("watermarks", {})),
        ),
        scaling=_scaling(spec["scaling"]),
        replicas=spec.get("replicas", 1),
        drain_timeout=seconds(spec["drainTimeout"]),
        executors=executors(application),
        service_account=account(application),
        template_hash=template_hash(spec),
        deleting="deletionTimestamp" in metadata,
        created=str(metadata.get("creationTimestamp", "")),
        pauses=pauses(metadata),
        rollout=RolloutSettings(
            strategy=RolloutStrategy(spec["rollout"]["strategy"]),
            progress_deadline=seconds(spec["rollout"]["progressDeadline"]),
        ),
        reset=_reset(spec["reset"], metadata) if "reset" in spec else None,
        executors_vary=not is_python(application) and "dynamicAllocation" in application["executor"],
    )


def _kafka(identity: GroupIdentity, spec: Mapping[str, Any]) -> KafkaSource:
    kafka = spec["source"]["kafka"]
    return KafkaSource(
        bootstrap_servers=kafka["bootstrapServers"],
        topics=tuple(kafka.get("topics", ())),
        topic_pattern=kafka.get("topicPattern", ""),
        group_id=kafka.get("groupId") or f"{identity.namespace}.{identity.name}",
        starting_position=kafka["startingPosition"],
        read_committed=kafka.get("isolationLevel") == "ReadCommitted",
        delete_offsets=spec.get("cleanup") == "Delete",
        security=kafka_security(spec),
        ending_timestamp=_time("spec.source.kafka.endingTimestamp", kafka.get("endingTimestamp")),
    )


def _kinesis(kinesis: Mapping[str, Any]) -> KinesisSource:
    return KinesisSource(
        stream=kinesis["streamName"] if "streamName" in kinesis else kinesis["streamARN"],
        region=kinesis["region"],
        endpoint=kinesis.get("endpoint", ""),
        secret=kinesis_secret(kinesis),
        starting_position=kinesis["startingPosition"],
    )


def kinesis_secret(kinesis: Mapping[str, Any]) -> str:
    """The name of the Secret with the access key; empty if the pods have an identity of their own."""
    return str(kinesis["credentials"]["secretRef"]["name"]) if "credentials" in kinesis else ""


def is_python(application: Mapping[str, Any]) -> bool:
    """Whether a consumer is a plain Python process, not a Spark application."""
    return bool(application.get("type") == PYTHON)


def account(application: Mapping[str, Any]) -> str:
    """The service account of the consumers. The schema cannot say its default, which depends on the type."""
    return str(application.get("serviceAccountName", ACCOUNTS[application.get("type", SPARK)]))


def executors(application: Mapping[str, Any]) -> int:
    """The most executor pods of one consumer; 0 if the driver runs the tasks, or if it is no Spark application."""
    if is_python(application):
        return 0
    executor = application["executor"]
    return int(executor["dynamicAllocation"]["maxExecutors"] if "dynamicAllocation" in executor else executor["instances"])


def _reset(reset: Mapping[str, Any], metadata: Mapping[str, Any]) -> Reset:
    return Reset(
        id=reset["id"],
        to=ResetTo(reset["to"]),
        timestamp=_time("spec.reset.timestamp", reset.get("timestamp")),
        offsets=tuple((ShardId(shard), offset) for shard, offset in reset.get("offsets", {}).items()),
        shards=tuple(ShardId(shard) for shard in reset.get("shards", ())),
        dry_run=reset["dryRun"],
        discard_state=reset.get("discardState", False),
        manager=_manager_of_reset(metadata),
    )


def _manager_of_reset(metadata: Mapping[str, Any]) -> str:
    """The field manager that wrote the reset's id: the tool that somebody used. Who that was only the audit log knows."""
    for entry in metadata.get("managedFields", ()):
        if "f:id" in entry.get("fieldsV1", {}).get("f:spec", {}).get("f:reset", {}):
            return str(entry["manager"])
    return ""


def kafka_security(spec: Mapping[str, Any]) -> KafkaSecurity:
    """What `spec.source.kafka.security` says; no security if it is not set."""
    security = spec["source"].get("kafka", {}).get("security", {})
    sasl, tls = security.get("sasl", {}), security.get("tls", {})
    oauth = sasl.get("oauth")

    def key(reference: Mapping[str, Any] | None, field: str) -> SecretKey | None:
        return None if reference is None else SecretKey(reference["name"], reference[field])

    return KafkaSecurity(
        protocol=security.get("protocol", "PLAINTEXT"),
        mechanism=sasl.get("mechanism", ""),
        username=sasl.get("username", ""),
        username_key=None if sasl.get("username") else key(sasl.get("secretRef"), "usernameKey"),
        password_key=key(sasl.get("secretRef"), "passwordKey"),
        ca_key=key(tls.get("caSecretRef"), "key"),
        certificate_key=key(tls.get("certificateSecretRef"), "certificateKey"),
        private_key=key(tls.get("certificateSecretRef"), "privateKeyKey"),
        verify_hostname=tls.get("verifyHostname", True),
        oauth=None if oauth is None else _oauth(oauth),
        issuer_ca_key=None if oauth is None else key(oauth.get("caSecretRef"), "key"),
        region=sasl.get("aws", {}).get("region", ""),
        keytab_key=key(sasl.get("kerberos", {}).get("keytabSecretRef"), "key"),
        service=sasl.get("kerberos", {}).get("serviceName", ""),
    )


def _oauth(given: Mapping[str, Any]) -> OAuth:
    extensions = sorted((each["name"], each["value"]) for each in given.get("extensions", ()))
    return OAuth(given["tokenEndpoint"], given.get("scope", ""), tuple(extensions))


def template_hash(spec: Mapping[str, Any]) -> str:
    """Changes with what running pods must be replaced for, and with nothing else.

    Settings that consumers hear in every heartbeat's reply are left out, and so is how this version of shardherd renders pods.
    What is in a Secret is not hashed either: pods read it again by themselves.
    """
    return digest(pod_inputs(spec))


OPTIONAL_OF_KAFKA = ("isolationLevel", "security")
"""What pods are made from of `spec.source.kafka`, and need not be there."""


def pod_inputs(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What of a spec pods are made from.

    Without what is as it would be if it were not given: a later version of the resource definition has more fields with
    defaults, which the API server fills in.
    """
    kafka = spec["source"].get("kafka", {})
    return {
        "application": _without(spec["application"], _usual(spec["application"])),
        **({"bootstrapServers": kafka["bootstrapServers"]} if kafka else {"kinesis": _of_pods(spec["source"]["kinesis"])}),
        "coordinatorLossLimit": spec["coordinatorLossLimit"],
        "drainTimeout": spec["drainTimeout"],
        # Only if it is set, so that groups without it keep the hash, and with it the pods, that they had.
        **{name: kafka[name] for name in OPTIONAL_OF_KAFKA if name in kafka},
        **({"state": spec["state"]["checkpoint"]} if "state" in spec else {}),
    }


def with_pod_inputs(resource: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """This resource, but its pods made from these inputs."""
    spec = resource["spec"]
    made = {
        **spec,
        "application": _with(inputs["application"], APPLICATION_DEFAULTS),
        "source": _with_source(spec["source"], inputs),
        "coordinatorLossLimit": inputs["coordinatorLossLimit"],
        "drainTimeout": inputs["drainTimeout"],
        **({"state": {**spec["state"], "checkpoint": inputs["state"]}} if "state" in inputs and "state" in spec else {}),
    }
    return {**resource, "spec": made}


def _of_pods(kinesis: Mapping[str, Any]) -> dict[str, Any]:
    """What pods are made from of `spec.source.kinesis`."""
    return {name: value for name, value in kinesis.items() if name != "startingPosition"}


def _with_source(source: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    if "kinesis" in source:
        kept = {name: value for name, value in source["kinesis"].items() if name == "startingPosition"}
        return {**source, "kinesis": {**kept, **inputs["kinesis"]}}
    declared = {name: value for name, value in source["kafka"].items() if name not in OPTIONAL_OF_KAFKA}
    kafka = {**declared, **{name: inputs[name] for name in ("bootstrapServers", *OPTIONAL_OF_KAFKA) if name in inputs}}
    return {**source, "kafka": kafka}


SPARK, PYTHON = "Spark", "Python"
"""Types of applications."""

ACCOUNTS: Mapping[str, str] = {SPARK: "shardherd-spark", PYTHON: "shardherd-worker"}
"""The service account of each type where none is declared."""

APPLICATION_DEFAULTS: Mapping[str, Any] = {
    "type": SPARK,
    "imagePullPolicy": "IfNotPresent",
    "driver": {"cores": 1, "memory": "1g"},
    "executor": {"instances": 1, "cores": 1, "memory": "1g"},
}
"""Every default of the resource definition below `spec.application`. A new one has to be added here, or an upgrade of the
operator would restart every pod; a test compares the two.
"""


def _usual(application: Mapping[str, Any]) -> dict[str, Any]:
    """What this application would be without what is declared of it, but for its type. Earlier versions of the schema had the
    account of Spark among its defaults.
    """
    spark = {"serviceAccountName": ACCOUNTS[SPARK]} if not is_python(application) else {}
    return {**APPLICATION_DEFAULTS, **spark}


def _without(value: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, item in value.items():
        usual = defaults.get(name)
        if isinstance(usual, Mapping) and isinstance(item, Mapping):
            inner = _without(item, usual)
            if inner:
                result[name] = inner
        elif name not in defaults or item != usual:
            result[name] = item
    return result


def _with(value: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    result = {name: dict(usual) if isinstance(usual, Mapping) else usual for name, usual in defaults.items()}
    for name, item in value.items():
        usual = defaults.get(name)
        result[name] = _with(item, usual) if isinstance(usual, Mapping) and isinstance(item, Mapping) else item
    return result
