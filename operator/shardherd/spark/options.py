"""The source's options, parsed: which go together, and what is wrong with them.

`source` reads them in Spark's processes; `option_table` has the table of them. Names are those of Spark's Kafka source where
the meaning is the same, and are not case-sensitive. It asks nobody anything.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardherd.consumer.settings_given import MOST_PORT
from shardherd.core.model.security import Security
from shardherd.source.kafka.fetch_memory import FETCH_MEMORY, LEAST_MEMORY
from shardherd.source.kafka.partitions import EARLIEST, LATEST
from shardherd.source.kafka.selection import Selection
from shardherd.source.reading.start_positions import RangeBound, by_offset, by_time, shards_of, whole_number
from shardherd.source.security import kafka_settings
from shardherd.source.values.value_format import ValueFormat, from_options
from shardherd.spark.flow import Limits
from shardherd.spark.option_table import ALONE, MEANINGLESS, OPTIONS, Mode


class OptionError(ValueError):
    """An option that is wrong, unknown, missing or out of place. Names it, its value and the remedy."""


_WAYS = ("subscribe", "subscribePattern", "assign")
_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


@dataclass(frozen=True, slots=True)
class Settings:
    """The options, parsed."""

    mode: Mode
    limits: Limits
    include_headers: bool = False
    committed: bool | None = None
    min_tasks: int | None = None
    max_task_records: int | None = None
    selection: Selection = field(default_factory=Selection)
    start: RangeBound = field(default_factory=lambda: RangeBound("startingOffsets", LATEST))
    stop: RangeBound = field(default_factory=lambda: RangeBound("endingOffsets", LATEST))
    fail_on_data_loss: bool = True
    bootstrap_servers: str = ""
    security: Security = field(default_factory=Security)
    values: ValueFormat = field(default_factory=ValueFormat)
    fetch_bytes: int = FETCH_MEMORY
    rack: str | None = None
    cell: tuple[int, int] | None = None
    topics: tuple[str, ...] = ()


def read_options(options: Mapping[str, str], *, batch: bool) -> Settings:
    """The settings of one read. Raises OptionError, RangeBoundError, KafkaSettingError."""
    given = _named(options)
    alone = "kafka.bootstrap.servers" in given
    if batch and not alone:
        raise OptionError("a batch read needs the option kafka.bootstrap.servers: a ConsumerGroup is read by readStream only")
    mode = Mode.BATCH if batch else Mode.STREAM if alone else Mode.GROUP
    _check_modes(given, mode)
    kafka = {name.removeprefix("kafka."): text for name, text in given.items() if name.startswith("kafka.")}
    settings = Settings(
        mode,
        _limits(given),
        include_headers=flag(given, "includeHeaders", default=False),
        fail_on_data_loss=flag(given, "failOnDataLoss", default=True),
        committed=_isolation(kafka.pop("isolation.level")) if "isolation.level" in kafka else None,
        min_tasks=whole(given, "minPartitions"),
        max_task_records=whole(given, "maxRecordsPerPartition"),
        values=value_format(given),
        fetch_bytes=_fetch_bytes(given),
        rack=kafka.pop("client.rack", None),
        cell=_cell(given["cell"]) if "cell" in given else None,
        topics=_topics("topics", given["topics"]) if "topics" in given else (),
    )
    if mode is Mode.GROUP:
        return settings
    return replace(
        settings,
        selection=_selection(given),
        start=_start(given, batch=batch),
        stop=_stop(given),
        bootstrap_servers=_servers(kafka.pop("bootstrap.servers")),
        security=kafka_settings.security_of(kafka),
    )


def _isolation(text: str) -> bool:
    """Whether only committed records are read."""
    if text.lower() not in kafka_settings.ISOLATION_LEVELS:
        raise OptionError(f"option kafka.isolation.level must be {' or '.join(kafka_settings.ISOLATION_LEVELS)}, not {text!r}")
    return kafka_settings.ISOLATION_LEVELS[text.lower()]


def check_names(options: Mapping[str, str]) -> None:
    """Whether there are such options, whatever they are used for. Raises OptionError, KafkaSettingError."""
    _named(options)


def wants_headers(options: Mapping[str, str]) -> bool:
    """Whether there is a column of headers."""
    return flag(_named(options), "includeHeaders", default=False)


def value_format(options: Mapping[str, str]) -> ValueFormat:
    """How values are read. Raises OptionError."""
    try:
        return from_options(options)
    except RecursionError as error:
        raise OptionError("option valueSchema is nested too deep: take a schema of fewer levels") from error
    except ValueError as error:
        raise OptionError(str(error)) from error


def _named(options: Mapping[str, str]) -> dict[str, str]:
    """The options under their own spelling, those of Kafka in lower case."""
    known = {option.name.lower(): option.name for option in OPTIONS}
    refused = {name.lower(): name for name in MEANINGLESS}
    given: dict[str, str] = {}
    for key, text in options.items():
        name = key.lower()
        if name in known:
            given[known[name]] = text
        elif name.startswith("kafka."):
            kafka_settings.check(name.removeprefix("kafka."))
            given[name] = text
        elif name in refused:
            raise OptionError(f"option {refused[name]} has no meaning here: {MEANINGLESS[refused[name]]}; remove it")
        else:
            near = difflib.get_close_matches(name, [*known, "kafka.bootstrap.servers"], 1)
            hint = f"did you mean {known[near[0]]}?" if near else f"the options are {', '.join(known.values())}"
            raise OptionError(f"unknown option {key!r} of format shardherd; {hint}")
    return given


def _check_modes(given: Mapping[str, str], mode: Mode) -> None:
    modes = {option.name: option.modes for option in OPTIONS}
    for name in given:
        if mode in modes.get(name, ALONE):
            continue
        if mode is Mode.GROUP:
            raise OptionError(
                f"option {name} has no meaning in a ConsumerGroup, which says itself what is read and from where: remove it, "
                "or give kafka.bootstrap.servers to read without a ConsumerGroup"
            )
        instead = {
            "targetBatchSeconds": "use maxOffsetsPerTrigger to bound a micro-batch",
            **dict.fromkeys(_ENDS, "a stream has no end: use spark.read, or Trigger.AvailableNow"),
        }
        raise OptionError(f"option {name} has no meaning for {mode.value}: {instead.get(name, 'remove it')}")
    for names in (_WAYS, _STARTS, _ENDS):
        if len(both := [name for name in names if name in given]) > 1:
            raise OptionError(f"options {both[0]} and {both[1]} say the same thing in two ways: keep one of them")
    for name, needed in (
        ("maxTriggerDelay", ("minOffsetsPerTrigger",)),
        ("startingOffsetsByTimestampStrategy", _STARTS[1:]),
        ("topics", ("cell",)),
    ):
        if name in given and not any(each in given for each in needed):
            raise OptionError(f"option {name} has no meaning without {' or '.join(needed)}: give that too, or remove it")


def _cell(text: str) -> tuple[int, int]:
    """A cell, and which start of its query reads it."""
    number, _, start = text.partition("/")
    found = whole_number(number), whole_number(start)
    if found[0] is None or found[1] is None:
        raise OptionError(f"option cell is set by cell.read() of shardherd.spark.run_cells, not {text[:80]!r}: read by that")
    return found[0], found[1]


def _topics(name: str, text: str) -> tuple[str, ...]:
    topics = tuple(sorted({topic.strip() for topic in text.split(",")} - {""}))
    if not topics:
        raise OptionError(f"option {name} must name topics, not {text!r}")
    return topics


def _selection(given: Mapping[str, str]) -> Selection:
    if "subscribe" in given:
        return Selection(_topics("subscribe", given["subscribe"]))
    if "subscribePattern" in given:
        pattern = given["subscribePattern"]
        try:
            re.compile(pattern)
        except RecursionError as error:
            wrong = f"option subscribePattern {pattern[:80]!r} is not a regular expression: nested too deep"
            raise OptionError(wrong) from error
        except (re.error, ValueError, OverflowError) as error:
            raise OptionError(f"option subscribePattern {pattern[:80]!r} is not a regular expression: {error}") from error
        if not pattern:
            raise OptionError("option subscribePattern is empty: give a regular expression, .* for every topic")
        return Selection(pattern=pattern)
    if "assign" in given:
        return Selection(shards=shards_of("assign", given["assign"]))
    raise OptionError("what is to be read? give one of the options subscribe, subscribePattern and assign")


def _start(given: Mapping[str, str], *, batch: bool) -> RangeBound:
    strategy = given.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise OptionError(f"option startingOffsetsByTimestampStrategy must be error or latest, not {strategy!r}")
    for name in _STARTS[1:]:
        if name in given:
            return by_time(name, given[name], everywhere=name == "startingTimestamp", unmatched_is_latest=strategy == "latest")
    if "startingOffsets" in given:
        return by_offset("startingOffsets", given["startingOffsets"], forbidden=LATEST if batch else None)
    return RangeBound("startingOffsets", EARLIEST if batch else LATEST)


def _stop(given: Mapping[str, str]) -> RangeBound:
    for name in _ENDS[1:]:
        if name in given:
            return by_time(name, given[name], everywhere=name == "endingTimestamp", unmatched_is_latest=True)
    return by_offset("endingOffsets", given.get("endingOffsets", "latest"), forbidden=EARLIEST)


def _servers(text: str) -> str:
    servers = [each.strip() for each in text.split(",")]
    for each in servers:
        host, _, port = each.rpartition(":")
        # Of an IPv6 address without brackets nobody can tell where the port begins; a larger port would be taken for another.
        bare = ":" in host.rpartition("://")[2] and not host.endswith("]")
        if not host or bare or not 0 < (whole_number(port) or 0) <= MOST_PORT:
            raise OptionError(f"option kafka.bootstrap.servers must be host:port, separated by commas, not {text!r}")
    return ",".join(servers)


def _limits(given: Mapping[str, str]) -> Limits:
    target = given.get("targetBatchSeconds")
    limits = Limits(
        max_records=whole(given, "maxOffsetsPerTrigger"),
        min_records=whole(given, "minOffsetsPerTrigger"),
        max_delay=duration("maxTriggerDelay", given.get("maxTriggerDelay", "15m")),
        max_bytes=whole(given, "maxBytesPerTrigger"),
        target_seconds=None if target is None else _seconds("targetBatchSeconds", target),
    )
    if limits.max_records is not None and limits.min_records is not None and limits.min_records > limits.max_records:
        raise OptionError(
            f"option minOffsetsPerTrigger {limits.min_records} is above maxOffsetsPerTrigger {limits.max_records}: lower it"
        )
    return limits


def whole(given: Mapping[str, str], name: str) -> int | None:
    """A whole number above 0, None without one. Raises OptionError."""
    text = given.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or not text.strip().strip("0"):
        raise OptionError(f"option {name} must be a whole number above 0, not {text[:80]!r}")
    found = whole_number(text)
    if not found:
        raise OptionError(f"option {name} must be a whole number above 0 that fits into 64 bits, not {text[:80]!r}")
    return found


def _fetch_bytes(given: Mapping[str, str]) -> int:
    found = whole(given, "maxFetchBytesPerTask") or FETCH_MEMORY
    if found < LEAST_MEMORY:
        raise OptionError(
            f"option maxFetchBytesPerTask {found} is below {LEAST_MEMORY}, the least that can be kept to: raise it"
        )
    return found


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise OptionError(f"option {name} must be a number above 0, not {text!r}")
    return value


def duration(name: str, text: str) -> float:
    """Seconds. Raises OptionError."""
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h)", text.strip().lower())
    number = None if found is None else whole_number(found[1])
    if found is None or not number:
        raise OptionError(f"option {name} must be a duration such as 30s or 15m, not {text[:80]!r}")
    return number * {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}[found[2]]


def flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """True or false. Raises OptionError."""
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise OptionError(f"option {name} must be true or false, not {given[name]!r}")
    return text == "true"
