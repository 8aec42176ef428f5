from __future__ import annotations

import pytest

from shardherd.core.model.nouns import ShardId
from shardherd.core.model.security import OAuth, Security
from shardherd.source.kafka.partitions import EARLIEST, LATEST
from shardherd.source.kafka.selection import Selection
from shardherd.source.reading.start_positions import RangeBound, RangeBoundError
from shardherd.source.security.kafka_settings import KafkaSettingError
from shardherd.spark.flow import Limits
from shardherd.spark.option_table import MEANINGLESS, OPTIONS, Mode
from shardherd.spark.options import OptionError, Settings, read_options

A, B = ShardId("clicks/0"), ShardId("clicks/1")
LONG, DEEP = "9" * 5000, '{"a":' * 5000
ALONE = {"kafka.bootstrap.servers": "kafka:9092", "subscribe": "clicks"}


def stream(**options: str) -> Settings:
    return read_options({**ALONE, **options}, batch=False)


def batch(**options: str) -> Settings:
    return read_options({**ALONE, **options}, batch=True)


def test_without_brokers_the_source_reads_in_a_consumer_group() -> None:
    assert read_options({}, batch=False) == Settings(Mode.GROUP, Limits())


def test_with_brokers_it_reads_by_itself_from_the_end_and_a_batch_from_the_beginning() -> None:
    alone = Settings(
        Mode.STREAM,
        Limits(),
        selection=Selection(("clicks",)),
        start=RangeBound("startingOffsets", LATEST),
        bootstrap_servers="kafka:9092",
    )

    assert stream() == alone
    assert batch().start == RangeBound("startingOffsets", EARLIEST)
    assert (batch().mode, batch().stop) == (Mode.BATCH, RangeBound("endingOffsets", LATEST))


def test_names_of_options_and_words_are_in_any_case() -> None:
    given = {
        "KAFKA.Bootstrap.Servers": "a:1, b:2",
        "SUBSCRIBEPATTERN": "cl.*",
        "startingoffsets": "Earliest",
        "includeHeaders": "TRUE",
    }

    found = read_options(given, batch=False)

    assert found.bootstrap_servers == "a:1,b:2"
    assert found.selection == Selection(pattern="cl.*")
    assert found.start == RangeBound("startingOffsets", EARLIEST)
    assert found.include_headers


def test_every_option_arrives() -> None:
    found = read_options(
        {
            "kafka.bootstrap.servers": "kafka:9092",
            "kafka.security.protocol": "sasl_ssl",
            "kafka.sasl.mechanism": "scram-sha-512",
            "kafka.sasl.username": "me",
            "kafka.sasl.password.file": "/secrets/password",
            "kafka.ssl.truststore.location": "/secrets/ca.pem",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.keystore.location": "/secrets/me.pem",
            "kafka.ssl.endpoint.identification.algorithm": "",
            "assign": '{"clicks": [1, 0], "views": [3]}',
            "startingOffsetsByTimestamp": '{"clicks": {"0": 5, "1": 6}, "views": {"3": 7}}',
            "startingOffsetsByTimestampStrategy": "latest",
            "failOnDataLoss": "false",
            "maxOffsetsPerTrigger": "100",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "90s",
            "maxBytesPerTrigger": "5000",
            "minPartitions": "8",
            "maxRecordsPerPartition": "50",
            "maxFetchBytesPerTask": "8388608",
            "kafka.client.rack": "zone-1",
        },
        batch=False,
    )

    views = ShardId("views/3")
    assert found == Settings(
        Mode.STREAM,
        Limits(100, 10, 90.0, 5000),
        min_tasks=8,
        max_task_records=50,
        fetch_bytes=8 << 20,
        rack="zone-1",
        selection=Selection(shards=(A, B, views)),
        start=RangeBound("startingOffsetsByTimestamp", times={A: 5, B: 6, views: 7}, unmatched_is_latest=True),
        fail_on_data_loss=False,
        bootstrap_servers="kafka:9092",
        security=Security(
            protocol="SASL_SSL",
            mechanism="SCRAM-SHA-512",
            username="me",
            password_file="/secrets/password",
            ca_file="/secrets/ca.pem",
            certificate_file="/secrets/me.pem",
            key_file="/secrets/me.pem",
            verify_hostname=False,
        ),
    )


def test_tokens_come_from_an_issuer() -> None:
    found = stream(
        **{
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "oauthbearer",
            "kafka.sasl.username": "clicks",
            "kafka.sasl.password.file": "/secrets/secret",
            "kafka.sasl.oauthbearer.token.endpoint.url": "https://issuer.example/token",
            "kafka.sasl.oauthbearer.scope": "kafka",
            "kafka.sasl.oauthbearer.extensions": "poolId=b, logicalCluster=a=1",
            "kafka.https.ca.location": "/secrets/issuer.pem",
        }
    )

    assert found.security == Security(
        "SASL_SSL",
        "OAUTHBEARER",
        username="clicks",
        password_file="/secrets/secret",
        oauth=OAuth("https://issuer.example/token", "kafka", (("logicalCluster", "a=1"), ("poolId", "b"))),
        issuer_ca_file="/secrets/issuer.pem",
    )


def test_a_query_may_be_a_principal_of_kerberos() -> None:
    given = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "GSSAPI",
        "kafka.sasl.username": "clicks@EXAMPLE",
        "kafka.sasl.kerberos.keytab": "/secrets/keytab",
        "kafka.sasl.kerberos.service.name": "broker",
    }

    found = Security("SASL_PLAINTEXT", "GSSAPI", username="clicks@EXAMPLE", keytab_file="/secrets/keytab", service="broker")
    assert stream(**given).security == found


def test_a_query_on_aws_may_be_who_its_pod_is() -> None:
    given = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "AWS_MSK_IAM", "kafka.sasl.aws.region": "eu-west-1"}

    assert stream(**given).security == Security("SASL_SSL", "AWS_MSK_IAM", region="eu-west-1")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"subscibe": "x"}, r"unknown option 'subscibe' of format shardherd; did you mean subscribe\?"),
        ({"colour": "x"}, "unknown option 'colour' of format shardherd; the options are kafka.bootstrap.servers, subscribe,"),
        ({"kafka.bootstrap.server": "x"}, r"kafka\.bootstrap\.server is none of .* did you mean kafka\.bootstrap\.servers\?"),
        ({"kafka.group.id": "x"}, r"option kafka\.group\.id has no meaning here: .*no Kafka group is joined; remove it"),
        ({"kafka.sasl.jaas.config": "x"}, r"kafka\.sasl\.jaas\.config has no meaning here: .*give kafka\.sasl\.username"),
        (
            {"kafka.sasl.oauthbearer.client.credentials.client.secret": "x"},
            r"no meaning here: a password among a query's options",
        ),
        ({"kafka.sasl.oauthbearer.extensions": "a"}, r"extensions must be name=value, separated by commas, not 'a'"),
        (
            {"kafka.sasl.oauthbearer.scope": "a"},
            r"options kafka\.sasl\.oauthbearer\.scope: the token endpoint '' must be an address",
        ),
        (
            {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER", "kafka.sasl.username": "me"},
            "options kafka.security.protocol, kafka.sasl.mechanism, kafka.sasl.username: .*",
        ),
        ({"groupIdPrefix": "x"}, "option groupIdPrefix has no meaning here: no Kafka group is joined; remove it"),
        ({"kafka.bootstrap.servers": "kafka"}, "kafka.bootstrap.servers must be host:port, separated by commas, not 'kafka'"),
        ({"kafka.bootstrap.servers": "kafka:0"}, "kafka.bootstrap.servers must be host:port, .*, not 'kafka:0'"),
        ({"kafka.bootstrap.servers": "a:9092,b:99092"}, "kafka.bootstrap.servers must be host:port, .*, not 'a:9092,b:99092'"),
        ({"kafka.bootstrap.servers": "::1:9092"}, "kafka.bootstrap.servers must be host:port, .*, not '::1:9092'"),
        ({"kafka.security.protocol": "TLS"}, r"options kafka\.security\.protocol: the security protocol 'TLS' is none of"),
        ({"kafka.ssl.keystore.type": "JKS"}, r"kafka\.ssl\.keystore\.type must be PEM, not 'JKS': convert the store"),
        ({"subscribePattern": "c.*"}, "options subscribe and subscribePattern say the same thing in two ways: keep one"),
        ({"startingOffsets": "soon"}, "option startingOffsets must be earliest or latest or JSON such as .*, not 'soon'"),
        (
            {"startingOffsets": '{"clicks": {"0": -3}}'},
            "option startingOffsets, topic 'clicks': '0': -3 is wrong; write it as in",
        ),
        ({"startingOffsets": '{"clicks": 3}'}, "option startingOffsets, topic 'clicks': give an object of partitions"),
        ({"startingOffsets": "{}"}, "option startingOffsets names no partition"),
        ({"startingOffsets": "{"}, "option startingOffsets must be JSON such as"),
        (
            {"startingOffsets": '{"clicks": {"0": 1}, "clicks": {"1": 2}}'},
            "option startingOffsets names 'clicks' twice: name it once",
        ),
        ({"startingOffsets": '{"clicks": {"0": 1, "0": 2}}'}, "option startingOffsets names '0' twice: name it once"),
        ({"startingOffsets": '{"clicks": {"0": 1, "00": 2}}'}, "option startingOffsets names shard clicks/0 twice"),
        ({"startingTimestamp": "now"}, "option startingTimestamp must be a time in milliseconds since 1970, not 'now'"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "options startingOffsets and startingTimestamp say the same"),
        (
            {"startingOffsetsByTimestampStrategy": "latest"},
            "no meaning without startingTimestamp or startingOffsetsByTimestamp",
        ),
        ({"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "none"}, "must be error or latest, not 'none'"),
        ({"endingOffsets": "latest"}, "option endingOffsets has no meaning for a stream of its own: a stream has no end"),
        ({"targetBatchSeconds": "1"}, "targetBatchSeconds has no meaning for a stream .* use maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger must be a whole number above 0, not '0'"),
        ({"maxFetchBytesPerTask": "4096"}, "option maxFetchBytesPerTask 4096 is below 4194304, the least that can be kept to"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger 9 is above maxOffsetsPerTrigger 5"),
        ({"maxTriggerDelay": "1m"}, "option maxTriggerDelay has no meaning without minOffsetsPerTrigger"),
        (
            {"minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"},
            "maxTriggerDelay must be a duration such as 30s or 15m, not",
        ),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss must be true or false, not 'maybe'"),
        ({"subscribe": " , "}, "option subscribe must name topics, not ' , '"),
        (
            {"maxOffsetsPerTrigger": LONG},
            "option maxOffsetsPerTrigger must be a whole number above 0 that fits into 64 bits, not",
        ),
        ({"maxOffsetsPerTrigger": str(2**63)}, "maxOffsetsPerTrigger must be .* fits into 64 bits, not '9223372036854775808'"),
        ({"minPartitions": LONG}, "option minPartitions must be a whole number above 0 that fits into 64 bits"),
        (
            {"minOffsetsPerTrigger": "1", "maxTriggerDelay": f"{LONG}s"},
            "option maxTriggerDelay must be a duration such as 30s or 15m",
        ),
        ({"startingTimestamp": LONG}, "option startingTimestamp must be a time in milliseconds since 1970, not '9999"),
        (
            {"startingOffsets": f'{{"clicks": {{"0": {2**63}}}}}'},
            "option startingOffsets, topic 'clicks': '0': 9223372036854775808",
        ),
        ({"startingOffsets": f'{{"clicks": {{"{LONG}": 1}}}}'}, "option startingOffsets, topic 'clicks': '9999.*': 1 is wrong"),
        ({"startingOffsets": DEEP}, r"option startingOffsets must be JSON such as .*: nested too deep"),
        ({"startingOffsetsByTimestamp": DEEP}, r"option startingOffsetsByTimestamp must be JSON such as .*: nested too deep"),
        ({"valueFormat": "avro", "valueSchema": DEEP}, "option valueSchema is nested too deep: take a schema of fewer levels"),
        ({"valueFormat": "json", "valueSchema": DEEP}, "option valueSchema is nested too deep: take a schema of fewer levels"),
        (
            {"valueFormat": "json", "valueSchema": f"a {'array<' * 5000}int{'>' * 5000}"},
            "option valueSchema is nested too deep: take a schema of fewer levels",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(options: dict[str, str], reason: str) -> None:
    with pytest.raises((OptionError, RangeBoundError, KafkaSettingError), match=reason) as refusal:
        stream(**options)
    assert len(str(refusal.value)) < 1000


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"assign": '{"clicks": []}'}, r'option assign must list partitions, as in {"clicks": \[0, 1\]}'),
        ({"assign": '{"clicks": [0], "clicks": [1]}'}, "option assign names 'clicks' twice: name it once"),
        ({"assign": '{"clicks": ["0"]}'}, "option assign must list partitions"),
        ({"assign": '{"clicks": 0}'}, "option assign must list partitions"),
        ({"subscribePattern": "("}, "option subscribePattern '\\(' is not a regular expression"),
        ({"subscribePattern": "(" * 5000}, "option subscribePattern '\\(+' is not a regular expression: nested too deep"),
        ({"subscribePattern": f"a{{{LONG}}}"}, "option subscribePattern 'a{9+' is not a regular expression: "),
        ({"subscribePattern": "a{99999999999}"}, r"'a\{99999999999\}' is not a regular expression: the repetition number"),
        ({"assign": DEEP}, "option assign must be JSON such as .*: nested too deep"),
        ({"assign": f'{{"clicks": [{2**31}]}}'}, r'option assign must list partitions, as in {"clicks": \[0, 1\]}'),
        ({"subscribePattern": ""}, r"option subscribePattern is empty: give a regular expression"),
        ({}, "what is to be read\\? give one of the options subscribe, subscribePattern and assign"),
    ],
)
def test_a_wrong_choice_of_topics_is_named(options: dict[str, str], reason: str) -> None:
    with pytest.raises((OptionError, RangeBoundError), match=reason):
        read_options({"kafka.bootstrap.servers": "kafka:9092", **options}, batch=False)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"startingOffsets": "latest"}, r"startingOffsets must not be latest \(-1\): nothing would be read"),
        ({"endingOffsets": '{"clicks": {"0": -2}}'}, r"endingOffsets must not be earliest \(-2\)"),
        ({"maxOffsetsPerTrigger": "5"}, "option maxOffsetsPerTrigger has no meaning for a batch read: remove it"),
        ({"endingTimestamp": "5", "endingOffsets": "latest"}, "options endingOffsets and endingTimestamp say the same thing"),
    ],
)
def test_a_batch_has_options_of_its_own(options: dict[str, str], reason: str) -> None:
    with pytest.raises((OptionError, RangeBoundError), match=reason):
        batch(**options)


def test_a_consumer_group_says_itself_what_is_read() -> None:
    with pytest.raises(
        OptionError, match=r"option subscribe has no meaning in a ConsumerGroup, .* or give kafka.bootstrap.servers"
    ):
        read_options({"subscribe": "clicks"}, batch=False)
    with pytest.raises(OptionError, match=r"a batch read needs the option kafka\.bootstrap\.servers"):
        read_options({}, batch=True)


def test_ends_and_times_of_a_batch() -> None:
    found = batch(startingTimestamp="5", endingOffsetsByTimestamp='{"clicks": {"0": 9}}')

    assert found.start == RangeBound("startingTimestamp", 5)
    assert found.stop == RangeBound("endingOffsetsByTimestamp", times={A: 9}, unmatched_is_latest=True)


def test_no_two_options_differ_only_in_case_and_none_is_refused_as_well() -> None:
    names = [option.name.lower() for option in OPTIONS] + [name.lower() for name in MEANINGLESS]

    assert len(names) == len(set(names))


@pytest.mark.parametrize(("given", "rack"), [({}, None), ({"kafka.client.rack": ""}, ""), ({"kafka.client.rack": "b"}, "b")])
def test_a_group_may_say_where_its_tasks_are(given: dict[str, str], rack: str | None) -> None:
    assert read_options(given, batch=False).rack == rack
