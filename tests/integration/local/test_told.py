"""Five ways in which a group breaks, on one machine: its user reads why, in the command line and on the page, and mends it.

All is done with what README.md says, and with nothing else. The tests share one group; each leaves it well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from kafka.admin import NewPartitions

from dev.cluster.broker import Broker
from dev.cluster.tools import Tools
from tests.harness.browser import chromium
from tests.harness.long import long
from tests.integration.local.person import STATUS, TOPIC, Person, administrator, installed

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """Somebody whose group reads four shards of a broker of its own."""
    folder = tmp_path_factory.mktemp("told")
    programs = installed(folder)
    broker = Broker(folder / "broker", Tools(), outlives=False)
    try:
        broker.launch()
        broker.ready()
        make_topic(broker, 4)
        with chromium(folder) as browser:
            found = Person(folder / "mine", programs, broker, browser)
            try:
                found.types("shardherd local up -d -f consumergroup.yaml --bootstrap localhost:9092")
                found.opens_the_page()
                found.is_well()
                yield found
            finally:
                found.closes()
    finally:
        broker.remove()


def make_topic(broker: Broker, partitions: int) -> None:
    with administrator(broker) as admin:
        admin.create_topics({TOPIC: {"num_partitions": partitions, "replication_factor": 1}}, wait_for_metadata=True)


def test_a_broker_that_was_stopped_is_named_and_nothing_else_is_to_be_done_than_to_start_it(person: Person) -> None:
    person.broker.stop()

    nobody = rf"no Kafka broker answers at {re.escape(person.broker.bootstrap)} within 3 s \(.*ECONNREFUSED.*\)"
    person.is_told(
        "SourceUnavailable",
        rf"{nobody}; check spec\.source\.kafka\.bootstrapServers, and that the brokers run and can be reached from the "
        r"operator's pod",
        means="the brokers do not answer, refuse us, or have no such topic, or none that matches topicPattern, or topicPattern "
        "is no regular expression of RE2, or a Secret with credentials cannot be used; the message names them and the error",
        remedy="check bootstrapServers and the way to them; create the topic, or correct topics or topicPattern; see "
        "security-kafka.md and kafka-faults.md",
    )
    assert re.search(rf"default/clickstream +False .* {nobody}", person.types(STATUS))
    person.reads("shardherd lag --local clickstream", r"VERDICT\ndefault/clickstream .* Unknown\n")

    person.broker.start()
    person.broker.ready()
    person.is_well()


@long
def test_a_consumer_that_was_stopped_is_named_and_ended_by_hand_and_started_anew(person: Person) -> None:
    person.breaks("shardherd local kill clickstream-0 --signal STOP")
    person.writes()

    person.is_told(
        "ConsumerSilent",
        r"clickstream-0 runs, but is not ready, and the operator hears nothing more\. If it stays so for "
        r"spec\.progressTimeout \(300 s\), its pod is replaced\.",
        means="a consumer's process runs, but is not ready, and the operator hears nothing more of it; others read its shards",
        remedy="none: its pod is replaced if it stays so for progressTimeout. If it comes again, look at what the process "
        "hangs in; to have it started anew at once: kubectl delete pod CONSUMER, on one machine shardherd local kill CONSUMER",
    )
    assert re.search(
        r"How is clickstream-0\?\n"
        r"ConsumerSilent: The process of clickstream-0 runs, but it is not ready any more since "
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ: it hangs, or was stopped, and reads nothing\.\n",
        person.types("shardherd explain --local clickstream clickstream-0"),
    )
    person.reads("shardherd shards --local clickstream", r"clickstream/0 +NOT_ALLOC ")

    person.types("shardherd local kill clickstream-0")
    person.is_well()
    assert "clickstream-0" in person.types("shardherd local logs clickstream-0")


@long
def test_a_topic_that_was_made_again_is_named_and_read_from_where_its_user_says(person: Person) -> None:
    shards = person.shards()
    with administrator(person.broker) as admin:
        admin.delete_topics([TOPIC])
    person.is_told(
        "SourceUnavailable",
        rf"topic 'clickstream' does not exist in Kafka at {re.escape(person.broker.bootstrap)}; create it or correct "
        r"spec\.source\.kafka\.topics",
        means="the brokers do not answer, refuse us, or have no such topic, or none that matches topicPattern, or topicPattern "
        "is no regular expression of RE2, or a Secret with credentials cannot be used; the message names them and the error",
        remedy="check bootstrapServers and the way to them; create the topic, or correct topics or topicPattern; see "
        "security-kafka.md and kafka-faults.md",
    )
    make_topic(person.broker, shards)
    person.writes()

    first = ", ".join(f"clickstream/{number}" for number in range(min(shards, 5)))
    more = f" and {shards - 5} more" if shards > 5 else ""
    person.is_told(
        "SourceRecreated",
        rf"{first}{more}: the topic was deleted and made again, and the checkpoints are those of the old one; nothing is "
        r"granted\. Say where to read on by spec\.reset, for example \{id: \.\.\., to: Earliest\}",
        means="the topic was deleted and made again: the checkpoints are those of the old one, and nothing is granted",
        remedy="reset the positions of all of its shards; to read the new topic from its begin: shardherd pause GROUP, "
        "shardherd offsets reset GROUP --to Earliest --execute, shardherd resume GROUP (on one machine with --local)",
    )
    person.reads("shardherd lag --local clickstream", r"VERDICT\ndefault/clickstream .* Stopped\n")

    assert person.types("shardherd pause --local clickstream").startswith("default/clickstream is paused: ")
    assert person.types("shardherd offsets reset --local clickstream --to Earliest --execute").startswith(
        f"Done: The positions of {shards} shards were set, "
    )
    assert person.types("shardherd resume --local clickstream") == "default/clickstream is resumed\n"
    person.is_well()


@long
def test_a_sink_that_fails_is_named_and_the_application_goes_on_once_it_works(person: Person) -> None:
    kept = person.rows.rename(person.rows.with_name("kept"))
    person.rows.write_text("in the way\n")
    person.writes()

    person.is_told(
        "CrashLooping",
        r"The application in pod clickstream-\d ended with exit code 1 and was started again \d times?; it said: "
        rf"org\.apache\.hadoop\.fs\.ParentNotDirectoryException: Parent path is not a directory: file:{person.rows}",
        means="the application ends; the message has its exit code and last words",
        remedy="read the driver's log (--previous); on one machine: shardherd local logs CONSUMER --previous",
    )
    assert re.search(r"default/clickstream +False .* Parent path is not a directory: ", person.types(STATUS))

    person.rows.unlink()
    kept.rename(person.rows)
    person.is_well()


@long
def test_a_topic_that_has_grown_beyond_what_is_allowed_says_which_limit_to_raise(person: Person) -> None:
    shards = person.shards()
    with administrator(person.broker) as admin:
        admin.create_partitions({TOPIC: NewPartitions(2 * shards)})

    person.is_told(
        "MaxReplicas",
        r"The shards ask for 2 consumers; spec\.scaling\.maxReplicas allows 1\.",
        means="more consumers are asked for than scaling.maxReplicas allows",
        remedy="raise it",
    )
    person.reads("shardherd shards --local clickstream", rf"clickstream/{2 * shards - 1} +ALREADY_ALLOC +clickstream-0 ")

    person.declare(scaling={"maxReplicas": 3})
    assert person.types("shardherd local apply -f consumergroup.yaml --bootstrap localhost:9092") == (
        "default/clickstream is declared\n"
    )
    person.sees("article > .said", r"^Consuming: 2 consumers read 8 shards\.$")
    person.is_well()
