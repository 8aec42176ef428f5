"""What every judge of ConsumerGroups says of them, an API server or this machine by itself: the cases, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

Json = dict[str, Any]

SPEC: Json = {
    "source": {"kafka": {"bootstrapServers": "kafka:9092", "topics": ["clicks"]}},
    "application": {"image": "example/clicks:1", "mainApplicationFile": "/app.py"},
}

KAFKA = "spec.source.kafka"

SCRAM = {
    "protocol": "SASL_SSL",
    "sasl": {"mechanism": "SCRAM-SHA-512", "username": "app", "secretRef": {"name": "kafka"}},
    "tls": {"caSecretRef": {"name": "kafka-ca"}},
}
MUTUAL = {"protocol": "SSL", "tls": {"certificateSecretRef": {"name": "clicks-tls"}, "verifyHostname": False}}
OAUTH = {
    "protocol": "SASL_SSL",
    "sasl": {
        "mechanism": "OAUTHBEARER",
        "secretRef": {"name": "kafka", "usernameKey": "client-id", "passwordKey": "client-secret"},
        "oauth": {
            "tokenEndpoint": "https://issuer.example:8443/realms/shop/token?p=1",
            "scope": "kafka.read kafka.write",
            "extensions": [{"name": "logicalCluster", "value": "lkc-1"}],
            "caSecretRef": {"name": "issuer"},
        },
    },
}


MSK = {"protocol": "SASL_SSL", "sasl": {"mechanism": "AWS_MSK_IAM", "aws": {"region": "eu-west-1"}}}


def _sasl(mechanism: str, protocol: str = "SASL_SSL", **sasl: object) -> Json:
    return {"source": {"kafka": {"security": {"protocol": protocol, "sasl": {"mechanism": mechanism, **sasl}}}}}


def _oauth(mechanism: str = "OAUTHBEARER", protocol: str = "SASL_SSL", **oauth: object) -> Json:
    """A group that gets tokens by what is said."""
    sasl = {"mechanism": mechanism, "secretRef": {"name": "kafka"}} | ({"oauth": oauth} if oauth else {})
    return {"source": {"kafka": {"security": {"protocol": protocol, "sasl": sasl}}}}


ARN = "arn:aws:kinesis:eu-central-1:123456789012:stream/orders"


def _kinesis(**source: object) -> Json:
    """A group that reads a stream of Kinesis."""
    kinesis = {"streamName": "orders", "region": "eu-central-1", **source}
    return {"source": {"kafka": None, "kinesis": kinesis}, "application": {"type": "Python"}}


PYTHON: Json = {"type": "Python", "mainApplicationFile": None, "processor": "clicks:Clicks"}
"""What makes an ordinary group's application one of Python."""


def _python(**more: object) -> Json:
    return {"application": {**PYTHON, **more}}


REFUSED_TYPES = [
    pytest.param(
        {"application": {"type": "Java"}},
        'spec.application.type: Unsupported value: "Java": supported values: "Spark", "Python"',
        id="a type that does not exist",
    ),
    pytest.param(
        {"application": {"mainApplicationFile": None}},
        "spec.application.mainApplicationFile is not set: name the application's Python file in the image, or set"
        " spec.application.type to Python and name a processor",
        id="a Spark application without a file",
    ),
    pytest.param(
        {"application": {"processor": "clicks:Clicks"}},
        "spec.application.processor is of the type Python: set spec.application.type to Python, or remove it",
        id="a Spark application with a processor",
    ),
    pytest.param(
        {"application": {"worker": {"memory": "1Gi"}}},
        "spec.application.worker is of the type Python: write what you want of a driver into spec.application.driver, or set"
        " spec.application.type to Python",
        id="a Spark application with a worker",
    ),
    pytest.param(
        _python(mainApplicationFile="/opt/app/app.py"),
        "spec.application has both processor and mainApplicationFile: remove one of them",
        id="a processor and a file",
    ),
    pytest.param(
        _python(processor=None),
        "spec.application has neither processor nor mainApplicationFile: set processor to module:Class",
        id="neither a processor nor a file",
    ),
    pytest.param(
        _python(processor="clicks.py"),
        'spec.application.processor "clicks.py" must be module:Class, for example clicks:Clicks',
        id="a processor that is a file",
    ),
    pytest.param(
        _python(sparkConf={"spark.ui.enabled": "false"}),
        "spec.application.sparkConf has no meaning in the type Python: remove it, or set spec.application.type to Spark",
        id="a Python application with Spark's settings",
    ),
    pytest.param(
        _python(checkpoint={"path": "/data"}),
        "spec.application.checkpoint has no meaning in the type Python: remove it, as positions are kept in Kafka, or set"
        " spec.application.type to Spark",
        id="a Python application with Spark's checkpoint",
    ),
    pytest.param(
        _python(driver={"memory": "2g"}),
        "spec.application.driver is of the type Spark: write what you want of a consumer's pod into spec.application.worker, or"
        " set spec.application.type to Spark",
        id="a Python application with a driver",
    ),
    pytest.param(
        _python(executor={"instances": 0}),
        "spec.application.executor has no meaning in the type Python, whose consumers have no executors: remove it, or set"
        " spec.application.type to Spark",
        id="a Python application with executors",
    ),
    pytest.param(
        {**_python(), "state": {"cells": 6, "checkpoint": {"claimName": "clicks-state"}}},
        "spec.state is for Spark applications, whose queries keep the state of cells: remove it, or set"
        " spec.application.type to Spark",
        id="a Python application with cells",
    ),
    pytest.param(
        _python(arguments=["x"]),
        "spec.application.arguments are those of mainApplicationFile, and a processor has none: remove them, or set"
        " spec.application.worker.options",
        id="a processor with arguments",
    ),
    pytest.param(
        _python(processor=None, mainApplicationFile="/app.py", worker={"options": {"batch_size": "1"}}),
        "spec.application.worker.options are those of a processor: give them to run() in your mainApplicationFile, or name a"
        " processor in its place",
        id="a file with options",
    ),
    pytest.param(
        _python(worker={"memory": "512m"}),
        "spec.application.worker.memory in body should match '^[1-9][0-9]*(Mi|Gi)$'",
        id="memory as Spark writes it",
    ),
]

REFUSED = [
    *REFUSED_TYPES,
    pytest.param(
        {"source": {"kafka": {"endingTimestamp": "yesterday"}}},
        "spec.source.kafka.endingTimestamp in body should match",
        id="an end that is no time",
    ),
    pytest.param(
        {"source": {"kafka": {"endingTimestamp": "2026-13-31T12:00:00Z"}}},
        'spec.source.kafka.endingTimestamp in body must be of type date-time: "2026-13-31T12:00:00Z"',
        id="an end in a month that there is not",
    ),
    pytest.param(
        {"reset": {"id": "r", "to": "Timestamp", "timestamp": "2026-02-30T12:00:00Z"}},
        'spec.reset.timestamp in body must be of type date-time: "2026-02-30T12:00:00Z"',
        id="a reset to a day that there is not",
    ),
    pytest.param(
        {"source": {"kafka": {"endingTimestamp": "2026-01-31T12:00:00Z", "startingPosition": "Latest"}}},
        "spec.source.kafka.startingPosition Latest begins behind spec.source.kafka.endingTimestamp, so that nothing is read:"
        " set it to Earliest, or remove the end",
        id="a beginning behind the end",
    ),
    pytest.param(
        {
            "source": {"kafka": {"endingTimestamp": "2026-01-31T12:00:00Z"}},
            "state": {"cells": 6, "checkpoint": {"claimName": "clicks-state"}},
        },
        "spec.source.kafka.endingTimestamp does not go with spec.state, whose cells read on as long as there is one: remove one"
        " of them",
        id="cells with an end",
    ),
    pytest.param(
        {"source": {"kafka": None}},
        "spec.source must name exactly one source: set spec.source.kafka or spec.source.kinesis",
        id="no source",
    ),
    pytest.param(
        {"source": {"kinesis": {"streamName": "orders", "region": "eu-central-1"}}},
        "spec.source must name exactly one source: remove spec.source.kafka or spec.source.kinesis",
        id="two sources",
    ),
    pytest.param(
        {"source": {"kafka": None, "kinesis": {"streamName": "orders"}}},
        "spec.source.kinesis.region: Required value",
        id="a stream without a region",
    ),
    pytest.param(
        _kinesis(streamName=None),
        "spec.source.kinesis has neither streamName nor streamARN: set one of them",
        id="a source in Kinesis without a stream",
    ),
    pytest.param(
        _kinesis(streamARN=ARN),
        "spec.source.kinesis has both streamName and streamARN: remove one of them",
        id="a stream by name and ARN",
    ),
    pytest.param(
        _kinesis(streamName=None, streamARN="arn:aws:sqs:eu-central-1:123456789012:orders"),
        "spec.source.kinesis.streamARN in body should match",
        id="an ARN of something else",
    ),
    pytest.param(
        _kinesis(streamName=None, streamARN=ARN, region="us-east-1"),
        f"spec.source.kinesis.region is us-east-1, but streamARN is {ARN}: set the region that it names",
        id="an ARN of another region",
    ),
    pytest.param(
        _kinesis(endpoint="kinesis.example"),
        "spec.source.kinesis.endpoint in body should match",
        id="an endpoint that is no URL",
    ),
    pytest.param(
        {**_kinesis(), "assignor": "Weighted"},
        "spec.assignor Weighted weighs shards by the records that positions count, and those of Kinesis count none: set Sticky",
        id="weights where nothing is counted",
    ),
    pytest.param(
        {**_kinesis(), "state": {"cells": 4, "checkpoint": {"claimName": "state"}}},
        "spec.state is for Kafka, whose keys keep their cells: shards of Kinesis split and merge. Remove it, or set"
        " spec.source.kafka",
        id="cells in Kinesis",
    ),
    pytest.param(
        {**_kinesis(), "reset": {"id": "a", "to": "Offsets", "offsets": {"orders/shardId-000000000000": 5}}},
        "spec.reset.to Offsets is for Kafka: set a position of Kinesis by Earliest, Latest or Timestamp",
        id="positions of Kinesis in a reset",
    ),
    pytest.param(
        {"source": {"pulsar": {}}},
        'unknown field "spec.source.pulsar"',
        id="a source that this version does not know",
    ),
    pytest.param(
        {"source": {"kafka": {"topicPattern": "click.*"}}},
        f"{KAFKA} has both topics and topicPattern: remove one of them",
        id="topics and a pattern",
    ),
    pytest.param(
        {"source": {"kafka": {"topics": None, "topicPattern": "(?!internal).*"}}},
        f"{KAFKA}.topicPattern must be a regular expression of RE2, which has no lookaround and no backreferences",
        id="a pattern that cannot be matched in bounded time",
    ),
    pytest.param(
        {"source": {"kafka": {"topics": None, "topicPattern": "clicks("}}},
        "error parsing regexp: missing closing )",
        id="a pattern that is none",
    ),
    pytest.param(
        {"source": {"kafka": {"topics": None}}},
        f"{KAFKA} has neither topics nor topicPattern: set one of them",
        id="neither topics nor a pattern",
    ),
    pytest.param(
        {"source": {"kafka": {"topics": ["not a topic"]}}},
        f"{KAFKA}.topics[0] in body should match '^[a-zA-Z0-9._-]+$'",
        id="a name that no topic can have",
    ),
    pytest.param(
        {"source": {"kafka": {"topics": ["a", "a"]}}},
        f'{KAFKA}.topics[1]: Duplicate value: "a"',
        id="a topic twice",
    ),
    pytest.param(
        {"source": {"kafka": {"bootstrapServers": "kafka"}}},
        f'{KAFKA}.bootstrapServers "kafka" is not a list of addresses: write host:port, several separated by "," '
        "without spaces",
        id="an address without a port",
    ),
    *(
        pytest.param(
            {"source": {"kafka": {"bootstrapServers": servers}}},
            f'{KAFKA}.bootstrapServers "{servers}" has a port that there is not: use ports from 1 to 65535',
            id=f"the port of {servers}",
        )
        for servers in ("kafka:65536", "kafka:0", "a:99999,b:9092", "a:9092,b:00000", "[fd00::1]:70000")
    ),
    pytest.param(
        {"source": {"kafka": {"startingPosition": "Middle"}}},
        'Unsupported value: "Middle": supported values: "Earliest", "Latest"',
        id="a position that does not exist",
    ),
    pytest.param(
        {"source": {"kafka": {"security": {"protocol": "SASL_SSL"}}}},
        f"{KAFKA}.security.protocol SASL_SSL needs a user: set sasl",
        id="SASL without a user",
    ),
    pytest.param(
        {"source": {"kafka": {"security": {"protocol": "SSL", "sasl": {"mechanism": "PLAIN", "secretRef": {"name": "a"}}}}}},
        f"{KAFKA}.security.protocol SSL uses no SASL: remove sasl, or set SASL_PLAINTEXT or SASL_SSL",
        id="a user without SASL",
    ),
    pytest.param(
        {"source": {"kafka": {"security": {"protocol": "PLAINTEXT", "tls": {}}}}},
        f"{KAFKA}.security.protocol PLAINTEXT uses no TLS: remove tls, or set SSL or SASL_SSL",
        id="authorities without TLS",
    ),
    pytest.param(
        {"source": {"kafka": {"security": {"protocol": "SASL_SSL", "sasl": {"mechanism": "PLAIN", "password": "x"}}}}},
        'unknown field "spec.source.kafka.security.sasl.password"',
        id="a password itself",
    ),
    pytest.param(
        {
            "source": {
                "kafka": {"security": {"protocol": "SASL_SSL", "sasl": {"mechanism": "OAUTH", "secretRef": {"name": "a"}}}}
            }
        },
        f'{KAFKA}.security.sasl.mechanism: Unsupported value: "OAUTH"',
        id="a mechanism that does not exist",
    ),
    pytest.param(
        _sasl("PLAIN"),
        f"{KAFKA}.security.sasl.mechanism PLAIN needs a password: set secretRef",
        id="a user without a password",
    ),
    pytest.param(
        _sasl("GSSAPI", username="clicks@EXAMPLE.COM"),
        f"{KAFKA}.security.sasl.mechanism GSSAPI needs a keytab: set kerberos.keytabSecretRef",
        id="Kerberos without a keytab",
    ),
    pytest.param(
        _sasl("PLAIN", secretRef={"name": "kafka"}, kerberos={"keytabSecretRef": {"name": "k"}}),
        f"{KAFKA}.security.sasl.mechanism PLAIN uses nothing of Kerberos: remove kerberos, or set GSSAPI",
        id="a keytab without Kerberos",
    ),
    pytest.param(
        _sasl("GSSAPI", kerberos={"keytabSecretRef": {"name": "k"}}),
        f"{KAFKA}.security.sasl needs for GSSAPI the principal, and no password: set username, and remove secretRef",
        id="Kerberos without a principal",
    ),
    pytest.param(
        _sasl("AWS_MSK_IAM", username="AKIA", aws={"region": "eu-west-1"}),
        f"{KAFKA}.security.sasl.username has no password: set secretRef, or remove username",
        id="an access key without its secret",
    ),
    pytest.param(
        _sasl("AWS_MSK_IAM"),
        f"{KAFKA}.security.sasl.mechanism AWS_MSK_IAM needs to know where the brokers are: set aws.region",
        id="AWS without a region",
    ),
    pytest.param(
        _sasl("PLAIN", secretRef={"name": "kafka"}, aws={"region": "eu-west-1"}),
        f"{KAFKA}.security.sasl.mechanism PLAIN uses nothing of AWS: remove aws, or set AWS_MSK_IAM",
        id="a region without AWS",
    ),
    pytest.param(
        _sasl("AWS_MSK_IAM", "SASL_PLAINTEXT", aws={"region": "eu-west-1"}),
        f"{KAFKA}.security.protocol SASL_PLAINTEXT does not go with AWS_MSK_IAM: set SASL_SSL",
        id="AWS without TLS",
    ),
    pytest.param(
        _oauth(),
        f"{KAFKA}.security.sasl.mechanism OAUTHBEARER needs to know where tokens come from: set oauth.tokenEndpoint",
        id="tokens from nowhere",
    ),
    pytest.param(
        _oauth("PLAIN", tokenEndpoint="https://issuer.example/token"),
        f"{KAFKA}.security.sasl.mechanism PLAIN uses no tokens: remove oauth, or set OAUTHBEARER",
        id="tokens for who needs none",
    ),
    pytest.param(
        _oauth(tokenEndpoint="http://issuer.example/token"),
        f'{KAFKA}.security.sasl.oauth.tokenEndpoint "http://issuer.example/token" must begin with https: when protocol is',
        id="a client's secret as plain text",
    ),
    pytest.param(
        _oauth(tokenEndpoint="https://me:word@issuer.example/token"),
        f"{KAFKA}.security.sasl.oauth.tokenEndpoint",
        id="a password in an address",
    ),
    pytest.param(
        _oauth(tokenEndpoint="https://issuer.example", extensions=[{"name": "auth", "value": "x"}]),
        f'{KAFKA}.security.sasl.oauth.extensions "auth" is the name of the token itself: remove it',
        id="an extension that would be the token",
    ),
    pytest.param(
        {"sessionTimeout": "8s"},
        "spec.sessionTimeout (8s) must be at least 3 x spec.heartbeatInterval (3s), or one lost heartbeat expires a "
        "consumer: raise the one or lower the other",
        id="a session that one lost heartbeat ends",
    ),
    pytest.param(
        {"ordered": True, "sessionTimeout": "17s"},
        "spec.sessionTimeout (17s) must be at least 15s and 6 x spec.heartbeatInterval (3s) when spec.ordered is true, "
        "or a consumer has no time to stop itself: raise it",
        id="an ordered group's session of less than six heartbeats",
    ),
    pytest.param(
        {"ordered": True, "sessionTimeout": "14s", "heartbeatInterval": "1s"},
        "spec.sessionTimeout (14s) must be at least 15s and 6 x spec.heartbeatInterval (1s)",
        id="an ordered group's session of less than 15 s",
    ),
    pytest.param(
        {"heartbeatInterval": "often"},
        "spec.heartbeatInterval in body should match '^([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$'",
        id="a duration that is none",
    ),
    pytest.param(
        {"heartbeatInterval": "100ms"},
        'spec.heartbeatInterval ("100ms") must be a duration from 500ms to 60s, for example 3s',
        id="heartbeats that come too often",
    ),
    pytest.param(
        {"drainTimeout": "0s"},
        'spec.drainTimeout ("0s") must be a duration from 1s to 1h, for example 60s',
        id="no time to drain",
    ),
    pytest.param(
        {"scaling": {"minReplicas": 5, "maxReplicas": 4}},
        "spec.scaling.minReplicas (5) is above spec.scaling.maxReplicas (4): lower the one or raise the other",
        id="limits the wrong way round",
    ),
    pytest.param(
        {"scaling": {"minReplicas": 11}},
        "spec.scaling.minReplicas (11) is above spec.scaling.maxReplicas (10): lower the one or raise the other",
        id="a lower limit above the default of the upper one",
    ),
    pytest.param(
        {"scaling": {"shardsPerConsumer": 0}},
        "spec.scaling.shardsPerConsumer in body should be greater than or equal to 1",
        id="consumers for no shards",
    ),
    pytest.param(
        {"scaling": {"mode": "Guess"}},
        'Unsupported value: "Guess": supported values: "Shards", "Lag", "Fixed", "External"',
        id="a mode that does not exist",
    ),
    pytest.param(
        {"scaling": {"lag": {"targetCatchupSeconds": 60}}},
        "spec.scaling.lag says nothing in mode Shards: remove it, or set spec.scaling.mode to Lag",
        id="settings of the lag in another mode",
    ),
    pytest.param(
        {"scaling": {"mode": "Lag", "shardsPerConsumer": 2}},
        "spec.scaling.shardsPerConsumer says nothing in mode Lag: remove it, or set spec.scaling.mode to Shards",
        id="shards for each consumer in another mode",
    ),
    pytest.param(
        {"scaling": {"mode": "Fixed", "recommendOnly": True}, "replicas": 1},
        "spec.scaling.recommendOnly has nothing to recommend in mode Fixed: remove it, or set spec.scaling.mode to "
        "Shards or Lag",
        id="recommendations of a mode that has none",
    ),
    pytest.param(
        {"scaling": {"mode": "Lag", "lag": {"targetCatchupSeconds": 5}}},
        "spec.scaling.lag.targetCatchupSeconds in body should be greater than or equal to 10",
        id="a backlog that is to be gone at once",
    ),
    pytest.param(
        {"scaling": {"stabilizationWindow": "48h"}},
        'spec.scaling.stabilizationWindow ("48h") must be a duration of at most 24h, for example 5m',
        id="a window of days",
    ),
    pytest.param(
        {"rollout": {"strategy": "InPlace"}},
        "spec.rollout.strategy InPlace needs spec.rejoinGrace, for which shards wait for a consumer that is replaced (it "
        "is 0s): set it to longer than an application takes to start, for example 2m",
        id="shards that do not wait for a consumer that is replaced in place",
    ),
    pytest.param(
        {"rollout": {"progressDeadline": "0s"}},
        'spec.rollout.progressDeadline ("0s") must be a duration from 1s to 24h, for example 10m',
        id="no time for a new version",
    ),
    pytest.param(
        {"scaling": {"mode": "Fixed"}},
        "spec.replicas is not set, and spec.scaling.mode Fixed runs as many consumers as it says: set it",
        id="a fixed number that is not given",
    ),
    pytest.param(
        {"scaling": {"mode": "External"}},
        "spec.replicas is not set, and spec.scaling.mode External runs as many consumers as it says: set it to what to "
        "begin with",
        id="an autoscaler that has nothing to begin with",
    ),
    pytest.param(
        {"replicas": 3},
        "spec.replicas says nothing in spec.scaling.mode Shards, which chooses the number itself: remove it, or set the "
        "mode to Fixed or External",
        id="a number beside a mode that chooses it",
    ),
    pytest.param(
        {"scaling": {"mode": "Fixed"}, "replicas": -1},
        "spec.replicas in body should be greater than or equal to 0",
        id="negative replicas",
    ),
    pytest.param(
        {"assignor": "Magic"},
        'spec.assignor "Magic" is none of Sticky, CooperativeSticky, Range, RoundRobin and Weighted: set one of them, '
        "or a plug-in, whose name has a dot",
        id="an assignor that does not exist",
    ),
    pytest.param({"watermarks": {}}, "spec.watermarks in body should have at least 1 properties", id="watermarks of nothing"),
    pytest.param({"watermarks": {"cpu": {}}}, 'unknown field "spec.watermarks.cpu"', id="watermarks of what is not measured"),
    pytest.param(
        {"watermarks": {"disk": {"low": "800Mi", "high": "600Mi"}}},
        "spec.watermarks.disk mixes percent that are used with bytes that are free (low 800Mi, high 600Mi, flood 95%): write "
        "all three in one of them",
        id="watermarks of two units",
    ),
    pytest.param(
        {"watermarks": {"memory": {"low": "90%"}}},
        "spec.watermarks.memory has low 90%, high 90% and flood 95%: as percent that are used low must be less than high, and "
        "high less than flood",
        id="a low watermark that is not below high",
    ),
    pytest.param(
        {"watermarks": {"disk": {"low": "1G", "high": "1Gi", "flood": "1"}}},
        "spec.watermarks.disk has low 1G, high 1Gi and flood 1: as bytes that are free low must be more than high, and high "
        "more than flood",
        id="watermarks with more free at high than at low",
    ),
    pytest.param(
        {"watermarks": {"own": {"low": "1Gi", "high": "1Mi", "flood": "1Ki"}}},
        "spec.watermarks.own.low in body should match '^([1-9][0-9]?|100)%$'",
        id="watermarks in bytes of a gauge without a unit",
    ),
    pytest.param(
        {"watermarks": {"disk": {"low": "101%"}}},
        "spec.watermarks.disk.low in body should match",
        id="a watermark above all",
    ),
    pytest.param(
        {"assignorOptions": {"weights": "Messages"}},
        'Unsupported value: "Messages": supported values: "Records", "Bytes"',
        id="weights of a unit that does not exist",
    ),
    pytest.param(
        {"source": {"kafka": {"growth": {"settle": "25h"}}}},
        'spec.source.kafka.growth.settle ("25h") must be a duration of at most 24h, for example 7m',
        id="a settle that is too long",
    ),
    pytest.param(
        {"source": {"kafka": {"growth": {"cutover": "Now", "settle": "5m"}}}},
        "spec.source.kafka.growth.settle is of no effect with cutover Now: leave it out, or set cutover to AfterSettle",
        id="a settle that nobody waits for",
    ),
    pytest.param(
        {"application": {"image": None}},
        "spec.application.image: Required value",
        id="no image",
    ),
    pytest.param(
        {"application": {"mainApplicationFile": "app.py"}},
        'spec.application.mainApplicationFile "app.py" must be the absolute path of a Python file in the image, '
        "for example /opt/app/app.py",
        id="a file without its path",
    ),
    pytest.param(
        {"application": {"env": [{"name": "SHARDHERD_GROUP", "value": "mine"}]}},
        'spec.application.env: the name "SHARDHERD_GROUP" is reserved: choose one that does not begin with SHARDHERD_',
        id="a reserved variable",
    ),
    pytest.param(
        {"application": {"sparkConf": {"spark.master": "local"}}},
        "spec.application.sparkConf has a key that is set by shardherd: remove spark.master, spark.submit.deployMode,",
        id="Spark settings that are ours",
    ),
    pytest.param(
        {"application": {"executor": {"instances": 3, "dynamicAllocation": {"maxExecutors": 4}}}},
        "spec.application.executor sets both instances (3) and dynamicAllocation: remove one of them",
        id="a fixed number of executors and a range of them",
    ),
    pytest.param(
        {"application": {"executor": {"dynamicAllocation": {"minExecutors": 5, "maxExecutors": 4}}}},
        "spec.application.executor.dynamicAllocation: minExecutors (5) is above maxExecutors (4): lower the one or raise "
        "the other",
        id="limits of executors the wrong way round",
    ),
    pytest.param(
        {"application": {"executor": {"dynamicAllocation": {}}}},
        "spec.application.executor.dynamicAllocation.maxExecutors: Required value",
        id="executors without a limit",
    ),
    pytest.param(
        {"application": {"driver": {"cores": 4, "cpuLimit": 3}}},
        "spec.application.driver: cpuLimit (3) is below cores (4): raise the one or lower the other",
        id="a driver with more cores than CPU",
    ),
    pytest.param(
        {"application": {"executor": {"cores": 2, "cpuLimit": 1}}},
        "spec.application.executor: cpuLimit (1) is below cores (2): raise the one or lower the other",
        id="executors with more cores than CPU",
    ),
    pytest.param(
        {"application": {"sparkConf": {"spark.dynamicAllocation.enabled": "true"}}},
        "and spark.executor.instances and spark.dynamicAllocation.enabled, .minExecutors and .maxExecutors",
        id="dynamic allocation behind our back",
    ),
    pytest.param(
        {"application": {"checkpoint": {"path": "/data", "volumeClaimTemplate": {"storageClassName": "fast"}}}},
        "spec.application.checkpoint sets both path and volumeClaimTemplate: remove one of them",
        id="two places for one checkpoint",
    ),
    pytest.param(
        {"state": {"cells": 0, "checkpoint": {"claimName": "state"}}},
        "spec.state.cells in body should be greater than or equal to 1",
        id="no cells",
    ),
    pytest.param({"state": {"cells": 4}}, "spec.state.checkpoint: Required value", id="cells without a place for their state"),
    pytest.param(
        {"state": {"cells": 4, "checkpoint": {}}},
        "spec.state.checkpoint sets neither claimName nor uri, and state in the pod itself would be lost with it: set one of "
        "them",
        id="state in the pod itself",
    ),
    pytest.param(
        {"state": {"cells": 4, "checkpoint": {"emptyDir": {}}}},
        'unknown field "spec.state.checkpoint.emptyDir"',
        id="state in an emptyDir",
    ),
    pytest.param(
        {"state": {"cells": 4, "checkpoint": {"claimName": "state", "uri": "s3a://bucket/state"}}},
        "spec.state.checkpoint sets both claimName and uri: remove one of them",
        id="two places for state",
    ),
    pytest.param(
        {"state": {"cells": 4, "checkpoint": {"uri": "file:///data"}}},
        'spec.state.checkpoint.uri "file:///data" is not one that all pods reach: write scheme://place, for example '
        "s3a://bucket/state; for a volume set claimName instead",
        id="state in a file of the pod",
    ),
    pytest.param(
        {"state": {"cells": 4, "checkpoint": {"uri": "/data"}}},
        'spec.state.checkpoint.uri "/data" is not one that all pods reach',
        id="state in a path of the pod",
    ),
    pytest.param(
        {"state": {"cells": 4, "checkpoint": {"claimName": "state"}}, "reset": {"id": "r1", "to": "Earliest"}},
        "spec.reset.discardState must be true in a group with spec.state, whose positions belong to the state of its cells: "
        "set it, if the state of all cells is to begin anew",
        id="a reset that keeps state of other positions",
    ),
    pytest.param(
        {
            "state": {"cells": 4, "checkpoint": {"claimName": "state"}},
            "reset": {"id": "r1", "to": "Earliest", "discardState": True, "shards": ["clicks/0"]},
        },
        "spec.reset.shards cannot be named in a group with spec.state, whose state is discarded as a whole: remove it",
        id="a reset of some shards that discards all state",
    ),
    pytest.param(
        {"reset": {"id": "r1", "to": "Earliest", "discardState": True}},
        "spec.reset.discardState says nothing in a group without spec.state: remove it",
        id="state discarded where there is none",
    ),
    pytest.param({"shardsPerConsumer": 4}, 'unknown field "spec.shardsPerConsumer"', id="a field in the wrong place"),
    pytest.param(
        {"reset": {"id": "r1", "to": "Timestamp"}},
        'spec.reset.to is Timestamp, which needs spec.reset.timestamp, for example "2026-01-31T12:00:00Z"',
        id="a reset to no time",
    ),
    pytest.param(
        {"reset": {"id": "r1", "to": "Latest", "timestamp": "2026-01-31T12:00:00Z"}},
        "spec.reset.to is Latest, which uses no timestamp: remove it, or set to: Timestamp",
        id="a reset to a time that is not used",
    ),
    pytest.param(
        {"reset": {"id": "r1", "to": "Timestamp", "timestamp": "2026-01-31T12:00:00"}},
        "spec.reset.timestamp in body should match",
        id="a time without a zone",
    ),
    pytest.param(
        {"reset": {"id": "r1", "to": "Offsets"}},
        'spec.reset.to is Offsets, which needs spec.reset.offsets, for example {"clicks/0": 1200}',
        id="a reset to no offsets",
    ),
    pytest.param(
        {"reset": {"id": "r1", "to": "Earliest", "offsets": {"clicks/0": 7}}},
        "spec.reset.to is Earliest, which uses no offsets: remove them, or set to: Offsets",
        id="offsets that are not used",
    ),
    pytest.param(
        {"reset": {"id": "r1", "to": "Offsets", "offsets": {"clicks/0": 7}, "shards": ["clicks/0"]}},
        "spec.reset.shards says nothing beside spec.reset.offsets, which names the shards: remove it",
        id="shards named twice",
    ),
    pytest.param(
        {"reset": {"id": "r1", "to": "Offsets", "offsets": {"clicks/0": -1}}},
        "spec.reset.offsets.clicks/0 in body should be greater than or equal to 0",
        id="a negative offset",
    ),
]
"""Specs, merged over an ordinary one, and what is said to them."""

REFUSED_NAMES = [
    (
        "a" * 41,
        f'metadata.name "{"a" * 41}" is too long, as the names of its pods are made from it: use at most 40 characters',
    ),
    (
        "web.clicks",
        'metadata.name "web.clicks" cannot name a Service: use lower-case letters, digits and "-", beginning with a letter',
    ),
    (
        "1clicks",
        'metadata.name "1clicks" cannot name a Service: use lower-case letters, digits and "-", beginning with a letter',
    ),
]

ACCEPTED = [
    pytest.param({"source": {"kafka": {"endingTimestamp": "2026-01-31T12:00:00+01:00"}}}, id="topics up to a time"),
    pytest.param(_kinesis(), id="a stream by name"),
    pytest.param({**_kinesis(), **_python()}, id="a stream that a processor reads"),
    pytest.param({**_kinesis(), "application": {}}, id="a stream that Spark reads"),
    pytest.param(
        _kinesis(
            streamName=None,
            streamARN=ARN,
            endpoint="https://vpce-1.kinesis.eu-central-1.vpce.amazonaws.com",
            credentials={"secretRef": {"name": "aws"}},
            startingPosition="Latest",
        ),
        id="a stream by ARN, with a key and an endpoint",
    ),
    pytest.param(_python(), id="a processor"),
    pytest.param(
        _python(
            worker={
                "cpu": "2",
                "memory": "1Gi",
                "logFormat": "text",
                "options": {"batch_size": "100"},
                "template": {"spec": {"nodeSelector": {"disk": "ssd"}}},
            },
            serviceAccountName="clicks",
            env=[{"name": "SINK", "value": "http://sink"}],
        ),
        id="a processor with all that it may have",
    ),
    pytest.param(
        _python(processor=None, mainApplicationFile="/opt/app/app.py", arguments=["--fast"]), id="a Python file that calls run"
    ),
    pytest.param({"ordered": True, "sessionTimeout": "18s"}, id="an ordered group's shortest session at 3 s"),
    pytest.param({"sessionTimeout": "9s"}, id="an unordered group's shortest session at 3 s"),
    pytest.param({"source": {"kafka": {"topics": None, "topicPattern": "click.*"}}}, id="a pattern"),
    pytest.param({"source": {"kafka": {"bootstrapServers": "a.b:9092,c-d:9093,10.0.0.1:9094"}}}, id="several brokers"),
    pytest.param({"source": {"kafka": {"bootstrapServers": "[fd00::1]:9092"}}}, id="an IPv6 address"),
    pytest.param({"source": {"kafka": {"bootstrapServers": "a:1,b:65535,c:10000"}}}, id="the first and the last port"),
    pytest.param({"source": {"kafka": {"security": SCRAM}}}, id="a user in a Secret"),
    pytest.param({"source": {"kafka": {"security": MUTUAL}}}, id="a certificate in a Secret"),
    pytest.param({"source": {"kafka": {"security": OAUTH}}}, id="tokens of an issuer"),
    pytest.param(
        _sasl("GSSAPI", username="clicks@EXAMPLE.COM", kerberos={"keytabSecretRef": {"name": "k"}}),
        id="the keytab of a principal",
    ),
    pytest.param({"source": {"kafka": {"security": MSK}}}, id="who AWS says that a pod is"),
    pytest.param(_sasl("AWS_MSK_IAM", secretRef={"name": "k"}, aws={"region": "eu-west-1"}), id="an access key in a Secret"),
    pytest.param(_oauth(protocol="SASL_PLAINTEXT", tokenEndpoint="http://issuer.example/token"), id="plain text everywhere"),
    pytest.param({"scaling": {"minReplicas": 0}}, id="no consumer without shards"),
    pytest.param({"scaling": {"mode": "Lag", "lag": {"targetCatchupSeconds": 60, "maxStep": 1}}}, id="mode Lag"),
    pytest.param({"scaling": {"mode": "Lag", "minReplicas": 0, "recommendOnly": True}}, id="recommendations from zero"),
    pytest.param({"scaling": {"mode": "External"}, "replicas": 0}, id="an autoscaler that begins with nobody"),
    pytest.param({"rejoinGrace": "1h30m"}, id="a duration of two units"),
    pytest.param({"application": {"executor": {"dynamicAllocation": {"maxExecutors": 4}}}}, id="executors as needed"),
    pytest.param(
        {"application": {"executor": {"dynamicAllocation": {"minExecutors": 0, "maxExecutors": 1}, "cores": 2}}},
        id="executors from none on",
    ),
    pytest.param({"application": {"driver": {"cores": 4, "cpuLimit": 4}, "executor": {"cpuLimit": 1}}}, id="limits on CPU"),
    pytest.param({"watermarks": {"disk": {}, "memory": {"flood": "100%"}, "own": {}}}, id="watermarks by default"),
    pytest.param(
        {
            "watermarks": {
                "disk": {"low": "9Ti", "high": "10G", "flood": "1024"},
                "own": {"low": "1%", "high": "9%", "flood": "10%"},
            }
        },
        id="watermarks as bytes that are free",
    ),
    pytest.param({"reset": {"id": "r1", "to": "Earliest", "shards": ["clicks/0"]}}, id="a reset of one shard"),
    pytest.param({"state": {"cells": 6, "checkpoint": {"claimName": "clicks-state"}}}, id="state in a claim"),
    pytest.param(
        {
            "state": {"cells": 1, "checkpoint": {"uri": "s3a://bucket/state"}},
            "reset": {"id": "r1", "to": "Latest", "discardState": True},
        },
        id="a reset that discards the state in a store",
    ),
    pytest.param(
        {"reset": {"id": "2026-01-31.a", "to": "Timestamp", "timestamp": "2026-01-31T12:00:00.5+01:00", "dryRun": True}},
        id="a reset by time",
    ),
    pytest.param(
        {"reset": {"id": "r1", "to": "Offsets", "offsets": {f"clicks/{number}": number for number in range(1000)}}},
        id="a reset of a thousand shards",
    ),
    pytest.param(
        {"application": {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}}, id="env"
    ),
    pytest.param({"application": {"driver": {"template": {"spec": {"anything": {"goes": 1}}}}}}, id="pod overrides"),
]

DEFAULTED: Json = {
    "source": {
        "kafka": {
            "bootstrapServers": "kafka:9092",
            "topics": ["clicks"],
            "startingPosition": "Earliest",
            "growth": {"cutover": "AfterSettle", "settle": "7m"},
        }
    },
    "ordered": False,
    "assignor": "Sticky",
    "assignorOptions": {"zones": "Prefer", "weights": "Records"},
    "heartbeatInterval": "3s",
    "sessionTimeout": "45s",
    "rejoinGrace": "0s",
    "releaseTimeout": "60s",
    "progressTimeout": "5m",
    "sinkTimeout": "30m",
    "cleanup": "Keep",
    "coordinatorLossLimit": "5m",
    "initialAssignmentDelay": "10s",
    "drainTimeout": "60s",
    "paused": False,
    "rollout": {"strategy": "Drain", "progressDeadline": "10m"},
    "scaling": {
        "mode": "Shards",
        "minReplicas": 1,
        "maxReplicas": 10,
        "stabilizationWindow": "5m",
        "recommendOnly": False,
    },
    "application": {
        "image": "example/clicks:1",
        "imagePullPolicy": "IfNotPresent",
        "type": "Spark",
        "mainApplicationFile": "/app.py",
        "driver": {"cores": 1, "memory": "1g"},
        "executor": {"instances": 1, "cores": 1, "memory": "1g"},
    },
}
"""The ordinary spec with every default."""
