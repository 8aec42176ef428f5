"""The example applications of `spark_apps`, each as `shardherd local up` runs it, and all that it has written."""

from __future__ import annotations

import http.server
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import CoordinatorNotAvailableError

from dev.cluster.postgresql import PostgreSQL
from tests.harness.broker import Broker
from tests.harness.long import long
from tests.harness.postgresql import postgresql
from tests.integration.local.test_laptop import Laptop

__all__ = ["postgresql"]

QUICK = {"heartbeatInterval": "1s", "initialAssignmentDelay": "1s"}
PARTITIONS = 2

Row = tuple[Any, ...]


class Example(Laptop):
    """One example, its topics with a name of their own, and its records."""

    def __init__(self, folder: Path, broker: Broker, name: str) -> None:
        super().__init__(folder, broker.bootstrap, application=name)
        self.mark = uuid.uuid4().hex[:6]
        self.producer = KafkaProducer(bootstrap_servers=self.bootstrap, acks="all", linger_ms=500)
        self.admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)

    def named(self, topic: str) -> str:
        return f"{topic}-{self.mark}"

    def up(self, *written: str, **replaced: str) -> None:
        """Declare it with topics of this test and start it: `written` are topics that it writes, `replaced` its arguments."""
        manifest = self.folder / "consumergroup.yaml"
        declared = yaml.safe_load(manifest.read_text())
        declared["metadata"]["name"] = self.named(declared["metadata"]["name"])
        declared["spec"] |= QUICK
        topics = declared["spec"]["source"]["kafka"]["topics"]
        names = {topic: self.named(topic) for topic in (*topics, *written)}
        declared["spec"]["source"]["kafka"]["topics"] = [names[topic] for topic in topics]
        arguments = [names.get(each, replaced.get(each, each)) for each in declared["spec"]["application"]["arguments"]]
        declared["spec"]["application"]["arguments"] = arguments
        manifest.write_text(yaml.safe_dump(declared))
        self.group = f"demo.{declared['metadata']['name']}"
        wanted = {name: {"num_partitions": PARTITIONS, "replication_factor": 1} for name in names.values()}
        self.admin.create_topics(wanted, wait_for_metadata=True)
        self.start("shardherd local up -f consumergroup.yaml --bootstrap localhost:9092")

    def send(self, topic: str, *records: tuple[str, object], partition: int = 0) -> None:
        """Key and value of records, which come at once."""
        for key, value in records:
            text = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.producer.send(self.named(topic), key=key.encode(), value=text, partition=partition)
        self.producer.flush()

    def shows(self, wanted: list[Row], rows: Callable[[], list[Row]]) -> None:
        """Wait until there are as many rows, which must be these."""
        self.until(f"{len(wanted)} rows", lambda: len(rows()) >= len(wanted))
        assert rows() == wanted

    def read_to(self, records: int) -> None:
        """Wait until this many records are durably done."""

        def done() -> int:
            try:
                found = self.admin.list_group_offsets(self.group)
            except CoordinatorNotAvailableError:  # a broker to which nobody has committed anything yet
                return 0
            return sum(each.offset for each in found[self.group].values())

        self.until(f"{records} records are done with", lambda: done() == records)

    def table(self, claim: str, name: str, *columns: str) -> list[Row]:
        """The rows of a Delta table, sorted; none while it is not there."""
        path = str(self.volume(claim) / name)
        if not DeltaTable.is_deltatable(path):
            return []
        found = DeltaTable(path).to_pyarrow_table(columns=list(columns)).to_pylist()
        return sorted(tuple(row[name] for name in columns) for row in found)

    def committed(self, topic: str) -> list[Any]:
        """What a consumer reads of a topic that reads committed records, by partition."""
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, isolation_level="read_committed", enable_auto_commit=False)
        found: list[Any] = []
        try:
            parts = [TopicPartition(self.named(topic), number) for number in range(PARTITIONS)]
            consumer.assign(parts)
            consumer.seek_to_beginning(*parts)
            ends = consumer.end_offsets(parts)
            while any(consumer.position(part) < ends[part] for part in parts):
                for batch in consumer.poll(timeout_ms=200).values():
                    found += batch
        finally:
            consumer.close()
        return sorted(found, key=lambda each: (each.partition, each.offset))

    def close(self) -> None:
        super().close()
        self.producer.close()
        self.admin.close()


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Path, broker: Broker) -> Iterator[Example]:
    found = Example(tmp_path / "app", broker, request.param)
    yield found
    found.close()


def of(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("example", [name], indirect=True, ids=[name])


def at(second: float) -> str:
    return f"2026-01-01T{int(second) // 3600:02d}:{int(second) // 60 % 60:02d}:{second % 60:06.3f}Z"


# --- sessions ----------------------------------------------------------------------------------------------------------------


@long
@of("sessions")
@pytest.mark.timeout(900)
def test_sessions_are_written_once_they_are_over_and_late_clicks_count_while_they_may(
    example: Example, postgresql: PostgreSQL
) -> None:
    def query(text: str) -> list[Row]:
        with psycopg.connect(postgresql.conninfo) as connection:
            return connection.execute(text).fetchall()

    readme = (example.folder / "README.md").read_text()
    create = next(part for part in readme.split("`") if part.startswith("CREATE TABLE"))
    with psycopg.connect(postgresql.conninfo) as connection:
        connection.execute(create)

    def rows() -> list[Row]:
        minute = "(extract(epoch from {} - '2026-01-01T00:00:00Z'::timestamptz) / 60)::int"
        begun, ended = (minute.format(name) for name in ("began_at", "ended_at"))
        return query(f"SELECT user_id, {begun}, {ended}, clicks FROM sessions ORDER BY 1, 2")

    def click(user: str, minute: int) -> tuple[str, object]:
        return user, {"event_time": at(60 * minute)}

    example.up(**{"host=postgresql dbname=clicks user=shardherd": postgresql.conninfo})
    # Ann's third click comes 8 minutes late, and counts. What follows after a pause ends the sessions before it.
    example.send("clickstream", *(click("ann", minute) for minute in (0, 18, 10, 35, 80)), ("ann", b"no click"))
    example.send("clickstream", *(click("bob", minute) for minute in (3, 20, 70)), partition=1)
    example.shows([("ann", 0, 35, 4), ("bob", 3, 20, 2)], rows)

    # One that is too late for its session, one that is not, and one that ends that session; bob's go on in a session.
    example.send("clickstream", *(click("ann", minute) for minute in (12, 72, 130)))
    example.send("clickstream", *(click("bob", minute) for minute in (99, 128, 180)), partition=1)
    example.shows([("ann", 0, 35, 4), ("ann", 72, 80, 2), ("bob", 3, 20, 2), ("bob", 70, 128, 3)], rows)


# --- joins -------------------------------------------------------------------------------------------------------------------


def numbers(key: str, *found: tuple[int, float]) -> list[tuple[str, object]]:
    return [(key, {"number": number, "event_time": at(second)}) for number, second in found]


def pairs(example: Example) -> list[Row]:
    return example.table("joins-data", "joined", "key", "order", "payment")


INTERVAL = {"order": (0, 2, 3, 4, 5, 7), "payment": (0, 1, 6, 7)}
NEAR = [(0, 0), (0, 1), (2, 0), (2, 1), (3, 1), (5, 6), (7, 6), (7, 7)]
"""Both ends count: payment 1 is 2 seconds before order 3."""


@of("joins")
@pytest.mark.timeout(900)
def test_an_interval_join_has_both_ends(example: Example) -> None:
    example.up("orders", "payments")
    example.send("payments", *numbers("key", *((each, each) for each in INTERVAL["payment"])))
    example.send("orders", *numbers("key", *((each, each) for each in INTERVAL["order"])), *numbers("other", (1, 1)))
    example.shows([("key", *pair) for pair in NEAR], lambda: pairs(example))


@long
@of("joins")
@pytest.mark.timeout(900)
def test_an_order_that_comes_when_the_watermark_has_passed_it_finds_no_partner(example: Example) -> None:
    example.up("orders", "payments")
    example.send("payments", *numbers("key", *((each, each) for each in INTERVAL["payment"])))
    example.send("orders", *numbers("key", *((each, each) for each in INTERVAL["order"] if each != 3)))
    wanted = [("key", *pair) for pair in NEAR if pair != (3, 1)]
    example.shows(wanted, lambda: pairs(example))
    # A micro-batch brings the watermark on, the next one goes by it, and the one after that drops what is late.
    for number in (20, 21):
        example.send("payments", *numbers("next", (number, number)))
        example.send("orders", *numbers("next", (number, number)))
        near = [(first, second) for first in range(20, number + 1) for second in range(20, number + 1)]
        example.shows([*wanted, *(("next", *pair) for pair in near)], lambda: pairs(example))
    example.send("orders", *numbers("key", (3, 3)), *numbers("next", (23, 23)))
    example.shows([*wanted, *(("next", *pair) for pair in [*near, (23, 21)])], lambda: pairs(example))


ORDERS = numbers("key", (0, 0), (1, 0), (2, 1.5), (3, 1.5), (4, 2.5), (5, 2.5), (6, 3.5), (7, 3.5))
PAYMENTS = [*numbers("key", (0, 0), (1, 0), (3, 1.5), (4, 2.5)), *numbers("other", (4, 3.5))]


@long
@of("joins")
@pytest.mark.timeout(900)
def test_a_window_join_has_every_pair_of_a_key_and_a_second_also_with_what_was_there_before_a_crash(example: Example) -> None:
    example.up("orders", "payments", interval="window")
    example.send("payments", *PAYMENTS)
    example.send("orders", *ORDERS)
    joined = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 3), (3, 3), (4, 4), (5, 4)]
    example.shows([("key", *pair) for pair in joined], lambda: pairs(example))

    example.type(f"shardherd local kill {example.named('joins')}-0")
    example.send("payments", *numbers("key", (9, 3.5)))
    example.shows([("key", *pair) for pair in [*joined, (6, 9), (7, 9)]], lambda: pairs(example))


@long
@of("joins")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("join", "joined"),
    [
        ("sliding", [(0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 0), (1, 1), (1, 1)]),
        ("session", [(0, 0), (0, 1), (1, 0), (1, 1)]),
    ],
)
def test_sliding_windows_and_sessions_have_their_pairs_too(example: Example, join: str, joined: list[Row]) -> None:
    example.up("orders", "payments", interval=join)
    end = numbers("end", (9, 60))
    example.send("payments", *numbers("key", (0, 0), (1, 0)), *end)
    example.send("orders", *numbers("key", (0, 0), (1, 0)), *numbers("end", (8, 90)))
    example.shows([("key", *pair) for pair in joined], lambda: pairs(example))


@long
@of("joins")
@pytest.mark.timeout(900)
def test_a_co_group_shows_what_has_no_partner_too(example: Example) -> None:
    example.up("orders", "payments", interval="co-group")
    # In the end both topics go on, so that the watermark passes what was before.
    end = numbers("end", (9, 60))
    example.send("payments", *PAYMENTS, *end)
    example.send("orders", *ORDERS, *end)

    def rows() -> list[Row]:
        return example.table("joins-data", "joined", "key", "second", "orders", "payments")

    begin = 1767225600.0
    wanted = [
        ("key", begin, [0, 1], [0, 1]),
        ("key", begin + 1, [2, 3], [3]),
        ("key", begin + 2, [4, 5], [4]),
        ("key", begin + 3, [6, 7], []),
        ("other", begin + 3, [], [4]),
    ]
    example.shows(wanted, rows)


# --- enrich ------------------------------------------------------------------------------------------------------------------


@dataclass
class Places:
    """A service that answers for number 1 only after it has answered for the eight after it."""

    others: int = 0
    told: threading.Condition = field(default_factory=threading.Condition)

    def answer(self, number: int) -> str:
        with self.told:
            if number == 1:
                assert self.told.wait_for(lambda: self.others == 8, 60)
            else:
                self.others += 1
                self.told.notify_all()
        return f"hall {number % 3}"


@pytest.fixture
def places() -> Iterator[str]:
    known = Places()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = known.answer(int(self.path.split("/")[-1])).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Not to the terminal."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@long
@of("enrich")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("order", ["ordered", "unordered"])
def test_readings_go_by_the_rules_of_the_moment_and_get_their_places(example: Example, places: str, order: str) -> None:
    rules = example.volume("enrich-rules")
    rules.mkdir(parents=True)

    def rule(every: int) -> None:
        (rules / ".new").write_text(json.dumps({"key": "s1", "every": every}))
        (rules / ".new").rename(rules / "rules.json")

    def send(*found: int) -> None:
        example.send("readings", *(("s1", {"number": number}) for number in found))

    def rows() -> list[Row]:
        found = [(each.key, json.loads(each.value)) for each in example.committed("enriched-readings")]
        return [(key.decode(), value["number"], value["place"]) for key, value in found]

    example.up("enriched-readings", **{"places:8080": places, "ordered": order})
    send(0)
    example.read_to(1)
    rule(1)
    send(*range(1, 10))
    wanted = [*range(2, 10), 1] if order == "unordered" else [*range(1, 10)]
    example.until("the first rule's are there", lambda: len(rows()) >= 9)
    if order == "unordered":
        # The order of the others is that of their answers.
        assert sorted(rows()[:8]) == [("s1", number, f"hall {number % 3}") for number in range(2, 10)]
        wanted = [row[1] for row in rows()[:8]] + [1]
    example.read_to(10)
    rule(2)
    send(*range(10, 20))
    example.read_to(20)
    rule(3)
    send(*range(20, 38))
    example.read_to(38)
    second, third = [10, 12, 14, 16, 18], [21, 24, 27, 30, 33, 36]
    if order == "unordered":
        found = [row[1] for row in rows()]
        assert (sorted(found[9:14]), sorted(found[14:])) == (second, third)
        second, third = found[9:14], found[14:]
    assert rows() == [("s1", number, f"hall {number % 3}") for number in [*wanted, *second, *third]]


# --- lakehouse ---------------------------------------------------------------------------------------------------------------


@long
@of("lakehouse")
@pytest.mark.timeout(900)
def test_a_lakehouse_keeps_all_checks_some_and_adds_up_by_product(example: Example) -> None:
    def table(name: str, *columns: str) -> list[Row]:
        return example.table("lakehouse-data", f"lakehouse/{name}", *columns)

    def order(number: int, product: str, cents: int) -> tuple[str, object]:
        return f"o{number}", {"id": f"o{number}", "product": product, "cents": cents}

    example.up()
    first = [order(1, "tea", 300), order(2, "milk", 120), ("o3", b"not JSON"), order(4, "tea", -5)]
    second = [order(5, "tea", 200), ("o6", {"id": "o6", "cents": 7}), order(7, "bread", 400)]
    example.send("orders", *first)
    example.shows([("milk", 1, 120), ("tea", 1, 300)], lambda: table("gold", "product", "orders", "cents"))
    before = DeltaTable(str(example.volume("lakehouse-data") / "lakehouse" / "gold")).version()
    example.send("orders", *second, partition=1)
    example.until("gold has the rest", lambda: len(table("gold", "product")) == 3)

    assert table("gold", "product", "orders", "cents") == [("bread", 1, 400), ("milk", 1, 120), ("tea", 2, 500)]
    names = [example.named("orders") + f"/{number}" for number in range(2)]
    assert table("silver", "shard", "offset", "id", "product", "cents") == [
        (names[0], 0, "o1", "tea", 300),
        (names[0], 1, "o2", "milk", 120),
        (names[1], 0, "o5", "tea", 200),
        (names[1], 2, "o7", "bread", 400),
    ]
    raw = [
        (shard, offset, key.encode(), value if isinstance(value, bytes) else json.dumps(value).encode())
        for shard, records in zip(names, (first, second), strict=True)
        for offset, (key, value) in enumerate(records)
    ]
    assert table("bronze", "shard", "offset", "key", "value") == raw
    gold = DeltaTable(str(example.volume("lakehouse-data") / "lakehouse" / "gold"))
    changes = gold.load_cdf(before + 1, columns=["product", "orders", "cents", "_change_type"]).read_all()
    fields = ("_change_type", "product", "orders", "cents")
    fed = [" ".join(str(row[name]) for name in fields) for row in pa.table(changes).to_pylist()]
    assert sorted(fed) == ["insert bread 1 400", "update_postimage tea 2 500", "update_preimage tea 1 300"]
    gold.load_as_version(before)
    assert {str(each) for each in gold.to_pyarrow_table()["product"]} == {"milk", "tea"}, "what it was is still there"


# --- outbox ------------------------------------------------------------------------------------------------------------------


@long
@of("outbox")
@pytest.mark.timeout(900)
def test_the_outbox_has_each_paid_order_once_though_its_consumer_is_killed(example: Example) -> None:
    def orders(begin: int, end: int) -> None:
        for partition in range(PARTITIONS):
            found = [each for each in range(begin, end) if each % PARTITIONS == partition]
            states = {each: ("open", "paid")[each // 2 % 2] for each in found}
            example.send(
                "orders",
                *((f"o{each}", {"id": f"o{each}", "state": states[each], "cents": each}) for each in found),
                partition=partition,
            )

    def paid(count: int) -> list[Row]:
        found = (each for each in range(count) if each // 2 % 2)
        return sorted((f"o{each}", {"id": f"o{each}", "state": "paid", "cents": each}) for each in found)

    def rows() -> list[Row]:
        return sorted((each.key.decode(), json.loads(each.value)) for each in example.committed("paid-orders"))

    example.up("paid-orders")
    orders(0, 40)
    example.shows(paid(40), rows)
    example.type(f"shardherd local kill {example.named('outbox')}-0")
    orders(40, 80)
    example.read_to(80)
    assert rows() == paid(80)
    by_shard = [each.value for each in example.committed("paid-orders")]
    assert len(by_shard) == len(set(by_shard)) == 40


# --- running, countdown ------------------------------------------------------------------------------------------------------


@long
@of("running")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("reduce", [("0", 6, 9), ("0", 9, 12), ("0", 10, 14), ("1", 6, 5), ("1", 7, 5), ("1", 8, 7)]),
        ("min", [*[("0", 2, 4)] * 3, ("0", 1, 4), *[("1", 2, 4)] * 2, *[("1", 1, 4)] * 2]),
        ("min-by", [*[("0", 2, 4)] * 3, ("0", 1, 2), *[("1", 2, 4)] * 2, *[("1", 1, 0)] * 2]),
    ],
)
def test_each_record_gives_what_has_come_of_its_key_so_far_also_after_a_kill(
    example: Example, name: str, wanted: list[Row]
) -> None:
    def send(*records: tuple[int, int, int]) -> None:
        for key, first, second in records:
            example.send("numbers", (str(key), {"first": first, "second": second}), partition=key)

    def rows() -> list[Row]:
        return example.table("running-data", "running", "key", "first", "second")

    example.up(**{"min-by": name})
    send((0, 2, 4), (0, 4, 5), (1, 2, 4))
    example.read_to(3)
    example.type(f"shardherd local kill {example.named('running')}-0")
    send(
        (0, 3, 3),
        (0, 1, 2),
        (1, 5, 1) if name != "reduce" else (1, 4, 1),
        (1, 1, 0),
        (1, 2, 2) if name != "reduce" else (1, 1, 2),
    )
    example.shows(sorted(wanted), rows)


@long
@of("running")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "sent", "wanted"),
    [
        ("reduce", [1, 2, 3, 4, 5], [3, 6, 10, 15]),
        ("union", [0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]),
    ],
)
def test_sums_of_one_key_go_on_and_a_union_has_every_number_twice_also_after_a_kill(
    example: Example, name: str, sent: list[int], wanted: list[int]
) -> None:
    def send(*found: int) -> None:
        example.send("numbers", *(("key", {"first": each, "second": 0}) for each in found))

    def rows() -> list[Row]:
        return example.table("running-data", "running", "key", "first", "second")

    example.up(**{"min-by": name})
    send(*sent[:2])
    example.read_to(2)
    example.type(f"shardherd local kill {example.named('running')}-0")
    send(*sent[2:])
    example.read_to(len(sent))
    assert rows() == [("key", each, 0) for each in wanted]


@long
@of("countdown")
@pytest.mark.timeout(900)
def test_who_has_least_left_leaves_the_iteration_first_though_its_consumer_is_killed(example: Example) -> None:
    def left() -> list[Row]:
        found = sorted(example.committed("left"), key=lambda each: each.timestamp)
        return [(each.key.decode(), json.loads(each.value)["left"]) for each in found]

    example.up("left")
    example.send(
        "rounds", *((name, {"name": name, "left": at}) for name, at in (("Jim", 3), ("John", 2), ("Lily", 1), ("Lucy", 4)))
    )
    example.until("somebody has left", lambda: bool(left()))
    example.type(f"shardherd local kill {example.named('countdown')}-0")
    example.shows([("Lily", 0), ("John", 0), ("Jim", 0), ("Lucy", 0)], left)
