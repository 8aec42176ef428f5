"""What a user reads in a group's conditions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import (
    Condition,
    ConsumerId,
    ConsumerView,
    GroupSettings,
    Growth,
    GrowthCutover,
    Incarnation,
    Phase,
    ShardId,
    ShardState,
)
from shardherd.core.planning.conditions import Finding, dated, findings, unreadable
from shardherd.core.planning.observed import (
    ExecutorPod,
    Memory,
    Observation,
    Owned,
    OwnedSet,
    Pauses,
    Scaling,
    ScalingMode,
    Sizing,
    Trouble,
)
from shardherd.core.planning.scaling import Scale
from shardherd.core.planning.sizing import Decision
from tests.unit.core.planning.builders import NOW, WALL, consumers, course_of, declared, observation, pods, shards, view

MORE_ROOM = ". Raise the quota, or declare fewer consumers."


def found(seen: Observation) -> dict[str, tuple[str, str, str]]:
    """Conditions by type: status, reason, message."""
    return {item.type: (item.status, item.reason, item.message) for item in findings(seen, course_of(seen))}


def test_a_group_that_works_says_so_in_every_condition() -> None:
    assert found(observation()) == {
        "Ready": ("True", "Consuming", "2 consumers read 8 shards."),
        "Reconciling": ("False", "Settled", "2 consumers as declared."),
        "Stalled": ("False", "NotStalled", "Nothing is in the way."),
        "SourceReachable": ("True", "Discovered", "8 shards found."),
        "ConsumersReady": ("True", "AllReady", "2 of 2 consumers are ready."),
        "Balanced": ("True", "Balanced", "2 consumers with 4 shards each."),
        "ScalingActive": ("True", "FollowingShards", "8 shards to read, 4 for each consumer: 2 consumers."),
        "ScalingLimited": ("False", "WithinLimits", "No limit is in the way."),
        "CheckpointLost": ("False", "CheckpointsKept", "No durable position is missing."),
    }


def test_an_ordered_group_also_says_whether_order_is_kept() -> None:
    ordered = declared(settings=GroupSettings(ordered=True))
    assert found(observation(declared=ordered))["OrderPreserved"] == ("True", "OrderKept", "Every shard waits for its parents.")
    assert found(observation(declared=ordered, view=None))["OrderPreserved"][:2] == ("True", "OrderKept")
    three = tuple((ShardId(f"clicks/{number}"), 17 + number) for number in range(3))
    seen = found(observation(declared=ordered, view=view(shards(8), growths=(Growth("clicks", 4, 8, three),))))
    assert seen["OrderPreserved"][2].endswith("until these are read: clicks/0 below 17, clicks/1 below 18, clicks/2 below 19.")
    ends = tuple((ShardId(f"clicks/{number}"), 17 + number) for number in range(4))
    seen = found(observation(declared=ordered, view=view(shards(8), growths=(Growth("clicks", 4, 8, ends),))))
    assert seen["OrderPreserved"] == (
        "False",
        "PartitionGrowth",
        "Topic clicks grew from 4 to 8 partitions, and keys moved between them: records may be read out of order until these "
        "are read: clicks/0 below 17, clicks/1 below 18, clicks/2 below 19 and 1 more.",
    )
    assert seen["Ready"][0] == "True"
    read = found(observation(declared=ordered, view=view(shards(8), growths=(Growth("clicks", 4, 8, ()),))))
    assert read["OrderPreserved"][0] == "True"


def test_a_growth_by_no_multiple_names_the_next_one_and_what_keeps_order_another_time() -> None:
    settings = GroupSettings(ordered=True)
    grown = view(shards(6), growths=(Growth("clicks", 4, 6, ((ShardId("clicks/0"), 17),)),))
    said = found(observation(declared=declared(settings=settings), view=grown))["OrderPreserved"]
    assert said[1] == "PartitionGrowth"
    assert said[2].endswith("these are read: clicks/0 below 17. With a multiple of 4, such as 8, order would have been kept.")
    stopped = declared(settings=replace(settings, growth_cutover=GrowthCutover.NOW))
    said = found(observation(declared=stopped, view=grown))["OrderPreserved"]
    assert said[2].endswith("order would have been kept. Leave the producers stopped until then.")


def test_what_waits_since_a_topic_grew_is_told_with_what_it_waits_for() -> None:
    ordered = declared(settings=GroupSettings(ordered=True))
    there = [structs.replace(each, checkpoint=90, begin=0) for each in shards(4)]
    new = [structs.replace(each, shard=ShardId(f"clicks/{4 + at}")) for at, each in enumerate(shards(4, ShardState.WAIT))]
    growth = Growth("clicks", 4, 8, (), keeps=True)
    said = found(observation(declared=ordered, view=view([*there, *new], growths=(growth,))))["OrderPreserved"]
    assert said == (
        "True",
        "OrderKept",
        "clicks/4 waits: topic clicks grew from 4 to 8 partitions, and it waits for clicks/0: how far that must be read is "
        "looked up once producers have noticed (spec.source.kafka.growth). So do 3 shards more.",
    )
    taken = structs.replace(
        growth, ends=tuple((ShardId(f"clicks/{number}"), 100 if number == 3 else 90) for number in range(4))
    )
    said = found(observation(declared=ordered, view=view([*there, *new], growths=(taken,))))["OrderPreserved"]
    assert said[2] == (
        "clicks/7 waits: topic clicks grew from 4 to 8 partitions, and it waits for clicks/3 to be read to 100; it is read to "
        "90."
    )


class TestReady:
    def test_a_rebalance_does_not_make_it_flap(self) -> None:
        moving = (*shards(6), *shards(2, ShardState.TRANSFER, state_age=59.0))
        seen = found(observation(view=view(moving, consumers=consumers(4, 4))))
        assert seen["Ready"] == ("True", "Consuming", "2 consumers read 8 shards.")
        assert seen["Balanced"] == ("False", "Rebalancing", "2 shards moving, 0 held by nobody.")

    def test_a_transfer_that_takes_longer_than_the_release_timeout_ends_it(self) -> None:
        moving = (*shards(7), *shards(1, ShardState.TRANSFER, state_age=61.0))
        assert found(observation(view=view(moving)))["Ready"] == (
            "False",
            "TransferOverdue",
            "Shard clicks/0 is on the way to another consumer for over 60 s.",
        )

    def test_consumers_that_wait_for_their_sinks_end_it_and_are_named_with_the_time(self) -> None:
        def writing(*ages: float) -> tuple[ConsumerView, ...]:
            all_ = consumers(*(4 for _ in ages))
            return tuple(
                structs.replace(each, phase=Phase.WRITING, phase_age=Seconds(age)) for each, age in zip(all_, ages, strict=True)
            )

        seen = found(observation(view=view(shards(8), consumers=writing(299.0, 299.0))))
        assert seen["Ready"] == ("True", "Consuming", "2 consumers read 8 shards."), "so long reading may take, too"
        seen = found(observation(view=view(shards(8), consumers=writing(10.0, 300.0))))
        assert seen["Ready"] == (
            "False",
            "SinkBlocked",
            "clicks-1 has waited for its sink since 2023-11-14T22:08:00Z. It keeps its shards, and is replaced after "
            "spec.sinkTimeout (1800 s): see whether the sink takes records, and the log of clicks-1.",
        )
        seen = found(observation(view=view(shards(8), consumers=writing(900.0, 300.0))))
        both = "clicks-0, clicks-1 have waited for their sinks since 2023-11-14T21:58:00Z. They keep their shards, and are"
        assert seen["Ready"][2].startswith(both)
        lacking = observation(
            view=view(shards(8), consumers=writing(900.0, 0.0)),
            declared=declared(executors=2),
            consumers=pods(0, 1, running=True),
        )
        assert found(lacking)["Ready"][:2] == ("True", "Consuming"), "what has no executor waits for that"

    def test_shards_that_the_source_has_no_more_are_missed_by_nobody(self) -> None:
        overdue = shards(2, ShardState.TRANSFER, present=False, state_age=900.0)
        gone = (*shards(8), *shards(4, ShardState.NOT_ALLOC, present=False), *shards(51, present=False), *overdue)
        seen = found(observation(view=view(gone, consumers=consumers(4, 4))))
        assert (seen["Ready"][0], seen["Balanced"][0]) == ("True", "True")
        assert seen["SourceReachable"] == ("True", "Discovered", "8 shards found.")

    @pytest.mark.parametrize("reason", ["TopicMissing", "ShardsUnavailable"])
    def test_what_is_missing_of_the_source_is_told_and_is_all_that_is_wrong(self, reason: str) -> None:
        missing = Condition(reason, "t/3 has no leader")
        seen = found(observation(view=view(shards(8), consumers=consumers(4, 4), withheld=(missing,))))
        wrong = {kind: message[1:] for kind, message in seen.items() if message[0] != found(observation())[kind][0]}
        assert wrong == {"Ready": (reason, "t/3 has no leader")}

    def test_shards_without_a_holder_end_it_and_are_named(self) -> None:
        assert found(observation(view=view(shards(5, ShardState.NOT_ALLOC))))["Ready"] == (
            "False",
            "ShardsUnassigned",
            "Shards clicks/0, clicks/1, clicks/2 and 2 more are held by nobody yet.",
        )

    @pytest.mark.parametrize(
        ("wanted", "why"),
        [
            (
                {"scaling": Scaling(min_replicas=0, stabilization_window=60.0)},
                "All is read, and was for 60 s: no consumer until the next record.",
            ),
            ({"scaling": Scaling(ScalingMode.FIXED), "replicas": 0}, "spec.replicas says 0."),
            ({"scaling": Scaling(ScalingMode.EXTERNAL), "replicas": 0}, "spec.replicas says 0."),
        ],
    )
    def test_a_group_that_is_to_have_no_consumer_is_ready_although_nobody_holds_its_shards(
        self, wanted: dict[str, Any], why: str
    ) -> None:
        seen = observation(
            declared=declared(**wanted),
            view=view(shards(8, ShardState.NOT_ALLOC, lag_records=0, state_age=999.0)),
            stateful_set=OwnedSet(replicas=0),
            consumers=(),
            memory=Memory(sizing=Sizing(goal=0, idle_since=NOW - 999)),
        )
        told = found(seen)
        assert {kind: told[kind] for kind in ("Ready", "Reconciling", "Stalled", "ConsumersReady", "Balanced")} == {
            "Ready": ("True", "Consuming", f"No consumer is wanted. {why}"),
            "Reconciling": ("False", "Settled", "0 consumers as declared."),
            "Stalled": ("False", "NotStalled", "Nothing is in the way."),
            "ConsumersReady": ("True", "AllReady", "0 of 0 consumers are ready."),
            "Balanced": ("True", "Balanced", "0 consumers with 0 shards each."),
        }

    def test_a_group_that_a_pause_keeps_at_no_consumer_is_not_ready(self) -> None:
        seen = observation(
            declared=declared(replicas=2, scaling=Scaling(ScalingMode.FIXED), pauses=Pauses(scale_out=True)),
            view=view(shards(1, ShardState.NOT_ALLOC)),
            stateful_set=OwnedSet(replicas=0),
            consumers=(),
        )
        assert found(seen)["Ready"] == ("False", "ShardsUnassigned", "Shard clicks/0 is held by nobody yet.")

    def test_shards_that_wait_or_are_over_are_nobodys_fault(self) -> None:
        held = (*shards(6), *shards(1, ShardState.WAIT), *shards(1, ShardState.OVER))
        assert found(observation(view=view(held)))["Ready"] == ("True", "Consuming", "2 consumers read 6 shards.")

    def test_what_withholds_grants_is_a_deeper_cause_than_pods_that_do_not_run(self) -> None:
        withheld = view(shards(8), withheld=(Condition("GroupHasLiveMembers", "console-consumer is a member of shop.clicks."),))
        broken = pods(0, 1, ready=False, trouble=Trouble("ImageUnavailable", "no image"))
        seen = found(observation(view=withheld, consumers=broken))
        assert seen["Ready"] == ("False", "GroupHasLiveMembers", "console-consumer is a member of shop.clicks.")

    @pytest.mark.parametrize("reason", ["OwnershipUnreadable", "SnapshotTooLarge"])
    def test_a_stored_state_that_does_not_go_on_is_the_deepest_cause_and_stalls_the_group(self, reason: str) -> None:
        stuck = view((), withheld=(Condition(reason, "format 99"),), source_reachable=True, discovered=False)
        seen = found(observation(view=stuck))
        assert (seen["Stalled"], seen["Ready"]) == (("True", reason, "format 99"), ("False", reason, "format 99"))

    def test_all_that_withholds_grants_is_told_under_the_reason_of_the_first(self) -> None:
        withheld = view(shards(8), withheld=(Condition("GroupHasLiveMembers", "One is."), Condition("Resetting", "Two are.")))
        assert found(observation(view=withheld))["Ready"] == ("False", "GroupHasLiveMembers", "One is. Two are.")

    def test_a_transfer_has_the_whole_release_timeout(self) -> None:
        moving = (*shards(7), *shards(1, ShardState.TRANSFER, state_age=60.0))
        assert found(observation(view=view(moving)))["Ready"][:2] == ("True", "Consuming")

    def test_one_consumer_of_one_shard_is_told_in_the_singular(self) -> None:
        seen = found(
            observation(view=view(shards(1), consumers=consumers(1)), stateful_set=OwnedSet(replicas=1), consumers=pods(0))
        )
        assert {kind: message for kind, (_, _, message) in seen.items()} == {
            "Ready": "1 consumer reads 1 shard.",
            "Reconciling": "1 consumer as declared.",
            "Stalled": "Nothing is in the way.",
            "SourceReachable": "1 shard found.",
            "ConsumersReady": "1 of 1 consumer is ready.",
            "Balanced": "1 consumer with 1 shard.",
            "ScalingActive": "1 shard to read, 4 for each consumer: 1 consumer.",
            "ScalingLimited": "No limit is in the way.",
            "CheckpointLost": "No durable position is missing.",
        }

    @pytest.mark.parametrize(
        ("count", "named"),
        [
            (1, "Shard clicks/0 is held by nobody yet."),
            (3, "Shards clicks/0, clicks/1, clicks/2 are held by nobody yet."),
            (4, "Shards clicks/0, clicks/1, clicks/2 and 1 more are held by nobody yet."),
        ],
    )
    def test_the_first_three_shards_are_named(self, count: int, named: str) -> None:
        free = (*shards(count, ShardState.NOT_ALLOC), *shards(1, ShardState.NOT_ALLOC, present=False))
        seen = observation(view=view(free), stateful_set=OwnedSet(replicas=1), consumers=pods(0))
        assert found(seen)["Ready"] == ("False", "ShardsUnassigned", named)

    def test_it_needs_every_wanted_consumer(self) -> None:
        seen = found(observation(consumers=(*pods(0), *pods(1, ready=False))))
        assert seen["Ready"] == ("False", "Starting", "1 of 2 consumers is ready.")

    def test_a_consumer_that_is_about_to_go_does_not_count(self) -> None:
        seen = found(observation(consumers=(*pods(0), *pods(1, deleting=True))))
        assert seen["ConsumersReady"] == ("False", "Starting", "1 of 2 consumers is ready.")

    def test_a_group_that_is_being_deleted_is_not_ready(self) -> None:
        seen = found(observation(declared=declared(deleting=True)))
        assert seen["Ready"] == ("False", "Deleting", "The group is being deleted.")


def test_a_group_whose_shards_are_all_read_to_their_ends_says_so() -> None:
    over = view(shards(8, ShardState.OVER))
    assert found(observation(view=over))["Ready"] == ("True", "Consuming", "All shards are closed, and read to their ends.")


class TestSource:
    def test_an_unreachable_broker_is_named(self) -> None:
        lost = view(discovered=False, source_reachable=False, source_error="no Kafka broker answers at kafka:9092")
        seen = found(observation(view=lost, stateful_set=None, consumers=()))
        expected = ("False", "SourceUnavailable", "no Kafka broker answers at kafka:9092")
        assert (seen["SourceReachable"], seen["Ready"]) == (expected, expected)
        assert seen["Reconciling"][:2] == ("True", "WaitingForShards")
        assert seen["ScalingActive"][:2] == ("False", "WaitingForShards")

    def test_a_source_that_was_not_read_yet_is_not_called_unreachable(self) -> None:
        unread = view(discovered=False, source_reachable=False)
        message = "The source has not been read yet."
        assert found(observation(view=unread))["SourceReachable"] == ("Unknown", "Discovering", message)

    def test_of_a_group_that_is_not_loaded_nothing_is_known(self) -> None:
        seen = found(observation(view=None, stateful_set=None, consumers=()))
        unknown = ("Unknown", "Discovering")
        waiting = ("WaitingForShards", "No consumer is started before the shards are known.")
        assert {kind: seen[kind] for kind in ("SourceReachable", "Balanced", "Reconciling", "ConsumersReady")} == {
            "SourceReachable": (*unknown, "The coordinator has not loaded the group yet."),
            "Balanced": (*unknown, "The shards are not known yet."),
            "Reconciling": ("True", *waiting),
            "ConsumersReady": ("False", *waiting),
        }
        assert found(observation(view=view(discovered=False)))["Balanced"] == (*unknown, "The shards are not known yet.")
        assert seen["Ready"] == ("False", "Discovering", "The coordinator has not loaded the group yet.")

    def test_a_source_that_was_read_once_and_does_not_answer_is_unreachable_whatever_it_says(self) -> None:
        silent = view(shards(8), source_reachable=False)
        expected = ("False", "SourceUnavailable", "The source does not answer.")
        assert found(observation(view=silent))["SourceReachable"] == expected


class TestExecutors:
    """Spark makes executors' pods: why it could not is in the log of the driver that waits for them."""

    def of(self, *executors: ExecutorPod, count: int = 1, **fields: Any) -> tuple[str, str, str]:
        waiting = pods(0, 1, ready=False, running=True)
        fields = {"consumers": waiting, "executors": executors, **fields}
        return found(observation(declared=declared(executors=count), **fields))["ConsumersReady"]

    def executor(self, ordinal: int, **fields: Any) -> ExecutorPod:
        return ExecutorPod(f"exec-{ordinal}", f"uid-of-exec-{ordinal}", Incarnation(f"uid-{ordinal}", 1), **fields)

    def test_a_driver_that_has_none_is_named_with_where_to_look(self) -> None:
        message = "0 of 2 consumers are ready. clicks-1 has no executor yet; if it stays so, the driver's log says why: "
        assert self.of(self.executor(0)) == ("False", "Starting", f"{message}kubectl logs clicks-1")

    @pytest.mark.parametrize(
        ("drivers", "named"),
        [(2, "clicks-0, clicks-1"), (3, "clicks-0, clicks-1, clicks-2"), (4, "clicks-0, clicks-1, clicks-2 and others")],
    )
    def test_up_to_three_are_named(self, drivers: int, named: str) -> None:
        consumers = pods(*range(drivers), ready=False, running=True)
        said = self.of(consumers=consumers, stateful_set=OwnedSet(replicas=drivers), view=view(shards(drivers * 4)))[2]
        assert said.startswith(f"0 of {drivers} consumers are ready. {named} have no executor yet; ")

    def test_one_that_ended_is_none(self) -> None:
        assert "clicks-0, clicks-1 have" in self.of(self.executor(0, ended=True))[2]

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"count": 0}, id="the driver runs the tasks itself"),
            pytest.param({"consumers": pods(0, 1, ready=False)}, id="the drivers do not run yet"),
            pytest.param({"consumers": pods(0, 1, ready=False, running=True, deleting=True)}, id="they are about to go"),
        ],
    )
    def test_nobody_is_named_where_none_is_missed(self, fields: dict[str, Any]) -> None:
        assert self.of(**fields)[2] == "0 of 2 consumers are ready."

    def test_one_that_was_ready_once_is_no_matter_of_starting(self) -> None:
        consumers = (*pods(0, running=True), *pods(1, ready=False, running=True))
        assert self.of(consumers=consumers)[2].startswith("1 of 2 consumers is ready. clicks-1 has no executor yet; ")


class TestConsumers:
    @pytest.mark.parametrize(
        ("warning", "reason", "remedy"),
        [
            ('pods "clicks-0" is forbidden: violates PodSecurity "restricted:latest"', "PodsRejected", ""),
            ('pods "clicks-0" is forbidden: exceeded quota: small, requested: cpu=1', "QuotaExceeded", MORE_ROOM),
        ],
    )
    def test_pods_that_cannot_be_made_say_why(self, warning: str, reason: str, remedy: str) -> None:
        seen = found(observation(consumers=pods(1), warnings=(("FailedCreate", "older"), ("FailedCreate", warning))))
        expected = (reason, f"Pods cannot be made: {warning}{remedy}")
        assert seen["ConsumersReady"] == ("False", *expected)
        assert seen["Stalled"] == ("True", *expected)

    def test_the_last_warning_counts_and_only_while_pods_are_missing(self) -> None:
        warnings = (("FailedCreate", "exceeded quota: small"), ("FailedCreate", "no such volume"))
        missing = found(observation(consumers=pods(1), warnings=warnings))["ConsumersReady"]
        assert missing == ("False", "PodsRejected", "Pods cannot be made: no such volume")
        once = found(observation(consumers=pods(1), warnings=warnings[:1]))["ConsumersReady"]
        assert once == ("False", "QuotaExceeded", f"Pods cannot be made: exceeded quota: small{MORE_ROOM}")
        all_there = found(observation(consumers=(*pods(0), *pods(1, ready=False)), warnings=warnings))["ConsumersReady"]
        assert all_there == ("False", "Starting", "1 of 2 consumers is ready.")

    def test_one_that_hangs_is_named_and_what_becomes_of_it(self) -> None:
        silent = ((ConsumerId("clicks-1"), Incarnation("uid-1", 1)),)
        seen = observation(consumers=(*pods(0), *pods(1, ready=False, running=True)), view=view(shards(8), silent=silent))
        expected = (
            "ConsumerSilent",
            "clicks-1 runs, but is not ready, and the operator hears nothing more. If it stays so for spec.progressTimeout"
            " (300 s), its pod is replaced.",
        )
        assert found(seen)["ConsumersReady"] == ("False", *expected)
        assert found(seen)["Ready"] == ("False", *expected)
        assert found(seen)["Stalled"][0] == "False"

    def test_one_that_hangs_is_named_before_and_after_the_operator_misses_it(self) -> None:
        trouble = Trouble("ConsumerSilent", "The process of clicks-1 runs, but it is not ready any more.")
        consumers = (*pods(0), *pods(1, ready=False, running=True, trouble=trouble))
        said = ("False", "ConsumerSilent", "The process of clicks-1 runs, but it is not ready any more.")
        assert found(observation(consumers=consumers, view=view(shards(8))))["ConsumersReady"] == said
        silent = ((ConsumerId("clicks-1"), Incarnation("uid-1", 1)),)
        missed = found(observation(consumers=consumers, view=view(shards(8), silent=silent)))["ConsumersReady"]
        assert missed[2].startswith("clicks-1 runs, but is not ready, and the operator hears nothing more.")

    @pytest.mark.parametrize(("count", "others"), [(3, ""), (4, " and others")])
    def test_several_that_hang_are_named_as_such(self, count: int, others: str) -> None:
        silent = tuple((ConsumerId(f"clicks-{number}"), Incarnation(f"uid-{number}", 1)) for number in range(count))
        seen = observation(consumers=pods(*range(count), ready=False, running=True), view=view(shards(8), silent=silent))
        assert found(seen)["ConsumersReady"][2].startswith(
            f"clicks-0, clicks-1, clicks-2{others} run, but are not ready, and the operator hears nothing more. "
        )
        assert found(seen)["ConsumersReady"][2].endswith(" their pods are replaced.")

    def test_what_the_kubelet_says_of_another_pod_comes_before_one_that_hangs(self) -> None:
        silent = ((ConsumerId("clicks-1"), Incarnation("uid-1", 1)),)
        crashing = pods(0, ready=False, trouble=Trouble("CrashLooping", "It crashes."))
        seen = observation(consumers=(*crashing, *pods(1, ready=False, running=True)), view=view(shards(8), silent=silent))
        assert found(seen)["ConsumersReady"] == ("False", "CrashLooping", "It crashes.")

    def test_all_that_run_are_enough_while_the_shards_are_not_known(self) -> None:
        assert found(observation(view=None))["ConsumersReady"] == ("True", "AllReady", "2 of 2 consumers are ready.")

    def test_nobody_is_enough_where_nobody_is_wanted(self) -> None:
        none = declared(scaling=Scaling(mode=ScalingMode.FIXED), replicas=0)
        seen = found(observation(declared=none, stateful_set=None, consumers=()))
        assert seen["ConsumersReady"] == ("True", "AllReady", "0 of 0 consumers are ready.")

    def test_one_more_than_is_wanted_is_as_good_as_all(self) -> None:
        seen = found(observation(view=view(shards(4), consumers=consumers(4))))
        assert seen["ConsumersReady"][:2] == ("True", "AllReady")

    def test_what_stalls_one_that_is_not_wanted_any_more_is_no_matter(self) -> None:
        crashing = pods(1, ready=False, trouble=Trouble("CrashLooping", "it crashed"))
        seen = found(observation(view=view(shards(4)), consumers=(*pods(0), *crashing)))
        assert seen["Stalled"] == ("False", "NotStalled", "Nothing is in the way.")

    def test_a_pod_that_cannot_run_is_told_before_one_that_only_waits(self) -> None:
        seen = observation(
            consumers=(
                *pods(0, ready=False, trouble=Trouble("Unschedulable", "Pod clicks-0 has no node: no memory")),
                *pods(1, ready=False, trouble=Trouble("CrashLooping", "it crashed")),
            )
        )
        assert found(seen)["ConsumersReady"] == ("False", "CrashLooping", "it crashed")
        assert found(seen)["Stalled"] == ("True", "CrashLooping", "it crashed")

    def test_a_pod_without_a_node_may_get_one(self) -> None:
        seen = observation(consumers=(*pods(0), *pods(1, ready=False, trouble=Trouble("Unschedulable", "no memory"))))
        assert found(seen)["ConsumersReady"] == ("False", "Unschedulable", "no memory")
        assert found(seen)["Stalled"][:2] == ("False", "NotStalled")


class TestReconciling:
    def test_growing(self) -> None:
        seen = found(observation(view=view(shards(12))))
        assert seen["Reconciling"] == ("True", "ScalingOut", "Going from 2 to 3 consumers.")

    def test_starting_a_group(self) -> None:
        seen = found(observation(stateful_set=None, consumers=()))
        assert seen["Reconciling"] == ("True", "ScalingOut", "Going from 0 to 2 consumers.")
        assert seen["ConsumersReady"] == ("False", "Starting", "0 of 2 consumers are ready.")

    def test_draining(self) -> None:
        seen = found(observation(view=view(shards(4))))
        message = "clicks-1 must go: waiting until it has given up its shards."
        assert seen["Reconciling"] == ("True", "Draining", message)

    def test_draining_several(self) -> None:
        seen = found(observation(view=view(shards(4)), stateful_set=OwnedSet(replicas=3), consumers=pods(0, 1, 2)))
        message = "clicks-1, clicks-2 must go: waiting until they have given up their shards."
        assert seen["Reconciling"] == ("True", "Draining", message)

    def test_one_that_drains_for_too_long_is_told_in_the_singular(self) -> None:
        held = (*shards(3), *shards(1, holder=ConsumerId("clicks-1")))
        late = observation(view=view(held), memory=Memory(draining_since={ConsumerId("clicks-1"): NOW - 60}))
        message = "clicks-1 did not give up all shards within spec.drainTimeout (60 s) and is ended."
        assert found(late)["Reconciling"] == ("True", "DrainTimedOut", message)

    def test_draining_for_too_long(self) -> None:
        held = (*shards(2), *shards(1, holder=ConsumerId("clicks-1")), *shards(1, holder=ConsumerId("clicks-2")))
        since = {ConsumerId("clicks-1"): NOW - 60, ConsumerId("clicks-2"): NOW - 60}
        late = observation(
            view=view(held), stateful_set=OwnedSet(replicas=3), consumers=pods(0, 1, 2), memory=Memory(draining_since=since)
        )
        assert found(late)["Reconciling"] == (
            "True",
            "DrainTimedOut",
            "clicks-1, clicks-2 did not give up all shards within spec.drainTimeout (60 s) and are ended.",
        )

    def test_paused_by_the_annotation(self) -> None:
        seen = found(observation(declared=declared(pauses=Pauses(reconcile=True))))
        message = "The annotation shardherd.dev/pause-reconcile is true: nothing is changed."
        expected = ("False", "ReconcilePaused", message)
        assert (seen["Reconciling"], seen["ScalingActive"]) == (expected, expected)

    @pytest.mark.parametrize(
        ("count", "named"),
        [
            (5, "clicks-0, clicks-1, clicks-2, clicks-3, clicks-4 still run what was declared before."),
            (6, "clicks-0, clicks-1, clicks-2, clicks-3, clicks-4 and others still run what was declared before."),
        ],
    )
    def test_rolling_out_many(self, count: int, named: str) -> None:
        old = pods(*range(count), current=False, ready=False)
        seen = observation(view=view(shards(4 * count)), stateful_set=OwnedSet(replicas=count), consumers=old)
        expected = ("True", "RollingOut", f"0 of {count} consumers run what is declared; {named}")
        assert found(seen)["Reconciling"] == expected

    def test_a_pod_that_is_about_to_go(self) -> None:
        seen = found(observation(consumers=(*pods(0), *pods(1, deleting=True))))
        assert seen["Reconciling"] == ("True", "Starting", "2 of 2 pods exist.")

    def test_rolling_out(self) -> None:
        seen = found(observation(consumers=(*pods(0), *pods(1, current=False))))
        assert seen["Reconciling"] == (
            "True",
            "RollingOut",
            "1 of 2 consumers runs what is declared; clicks-1 still runs what was declared before. "
            "clicks-1 gives up its shards first.",
        )

    def test_pods_that_are_missing(self) -> None:
        assert found(observation(consumers=pods(0)))["Reconciling"] == ("True", "Starting", "1 of 2 pods exists.")


def test_a_taken_name_stalls_the_group() -> None:
    seen = found(observation(stateful_set=OwnedSet(ours=False, replicas=1), service=Owned(ours=False)))
    assert seen["Stalled"] == (
        "True",
        "NameTaken",
        'There already is a StatefulSet and a Service named "clicks" that belongs to something else: '
        "delete it, or name the group differently.",
    )
    assert seen["Ready"][:2] == ("False", "NameTaken")


def test_what_the_api_server_refuses_stalls_the_group() -> None:
    seen = found(observation(rejections=("volumeClaimTemplates cannot change",)))
    assert seen["Stalled"] == ("True", "ApplyRefused", "volumeClaimTemplates cannot change")
    assert found(observation(rejections=("One.", "Two.")))["Stalled"] == ("True", "ApplyRefused", "One. Two.")


def test_a_declaration_that_did_not_run_stalls_the_group() -> None:
    seen = found(observation(declared=declared(rejected="What generation 4 declares did not run.")))
    assert seen["Stalled"] == (
        "True",
        "RolledBack",
        "What generation 4 declares did not run. All pods went back to what ran before: change spec.application.",
    )


def test_of_what_withholds_grants_only_what_lasts_stalls_the_group() -> None:
    causes = (Condition("CheckpointLost", "clicks/3 had 500."), Condition("SnapshotTooLarge", "Too many shards."))
    seen = found(observation(view=view(shards(8), withheld=causes)))
    assert seen["Stalled"] == ("True", "SnapshotTooLarge", "Too many shards.")
    assert found(observation(view=view(shards(8), withheld=causes[:1])))["Stalled"][:2] == ("False", "NotStalled")


def test_a_resource_that_cannot_be_read_says_what_to_do() -> None:
    message = "spec.replicas is -1; correct it: until then the group goes on as it was."
    assert unreadable("spec.replicas is -1") == (
        Finding("Ready", "False", "InvalidSpec", message),
        Finding("Stalled", "True", "InvalidSpec", message),
    )


def test_shares_that_differ_by_more_than_one_are_uneven_unless_that_is_the_goal() -> None:
    uneven = view(shards(8), consumers=consumers(5, 3))
    assert found(observation(view=uneven))["Balanced"] == ("False", "Uneven", "Consumers hold between 3 and 5 shards.")
    by_range = declared(settings=GroupSettings(assignor="Range"))
    expected = ("True", "Balanced", "2 consumers with 3 to 5 shards each.")
    assert found(observation(view=uneven, declared=by_range))["Balanced"] == expected


def test_consumers_that_may_not_receive_are_no_matter_to_the_balance() -> None:
    two, warming, draining, cordoned = consumers(4, 4, 0, 1, 0)[1:]
    others = (
        structs.replace(warming, ready=False),
        structs.replace(draining, draining=True),
        structs.replace(cordoned, cordoned=True),
    )
    seen = found(observation(view=view(shards(9), consumers=(*consumers(4), two, *others))))
    assert seen["Balanced"] == ("True", "Balanced", "2 consumers with 4 shards each.")
    by_one = found(observation(view=view(shards(9), consumers=consumers(5, 4))))
    assert by_one["Balanced"] == ("True", "Balanced", "2 consumers with 4 to 5 shards each.")
    nobody = found(observation(view=view((), consumers=())))
    assert nobody["Balanced"] == ("True", "Balanced", "0 consumers with 0 shards each.")


def test_shards_that_nobody_holds_are_counted() -> None:
    held = (*shards(5), *shards(1, ShardState.TRANSFER), *shards(2, ShardState.NOT_ALLOC))
    assert found(observation(view=view(held)))["Balanced"] == ("False", "Rebalancing", "1 shard moving, 2 held by nobody.")


@pytest.mark.parametrize(
    ("count", "limited"),
    [
        (12, ("True", "MaxReplicas", "The shards ask for 3 consumers; spec.scaling.maxReplicas allows 2.")),
        (4, ("True", "MinReplicas", "The shards ask for 1 consumer; spec.scaling.minReplicas keeps 2.")),
        (8, ("False", "WithinLimits", "No limit is in the way.")),
    ],
)
def test_a_limit_that_binds_is_named(count: int, limited: tuple[str, str, str]) -> None:
    scaling = Scaling(min_replicas=2, max_replicas=2)
    seen = observation(declared=declared(scaling=scaling), view=view(shards(count)))
    assert found(seen)["ScalingLimited"] == limited


@pytest.mark.parametrize("mode", [ScalingMode.FIXED, ScalingMode.EXTERNAL])
def test_scaling_by_somebody_else_is_not_active(mode: ScalingMode) -> None:
    seen = found(observation(declared=declared(scaling=Scaling(mode=mode), replicas=2)))
    assert seen["ScalingActive"] == ("False", mode.value, "spec.replicas says 2.")


def test_scaling_by_the_lag_is_active() -> None:
    seen = observation(declared=declared(scaling=Scaling(mode=ScalingMode.LAG)))
    decision = Scale(Decision(2, "KeepingUp", "200 records/s are written."), 2)
    conditions = {item.type: item for item in findings(seen, course_of(seen, decision))}
    assert conditions["ScalingActive"] == Finding("ScalingActive", "True", "FollowingLag", "200 records/s are written.")


def test_a_lost_checkpoint_is_told() -> None:
    causes = (Condition("Resetting", "clicks/1 is set."), Condition("CheckpointLost", "clicks/3 had 500 and has nothing."))
    lost = view(shards(8), withheld=causes)
    assert found(observation(view=lost))["CheckpointLost"] == ("True", "CheckpointLost", "clicks/3 had 500 and has nothing.")


class TestDates:
    finding = Finding("Ready", "True", "Consuming", "all is well")

    def test_a_new_condition_turned_now(self) -> None:
        assert dated([self.finding], [], 4, WALL) == [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Consuming",
                "message": "all is well",
                "observedGeneration": 4,
                "lastTransitionTime": "2023-11-14T22:13:20Z",
            }
        ]

    def test_one_whose_status_stays_and_whose_time_is_not_known_turned_now(self) -> None:
        (found,) = dated([self.finding], [{"type": "Ready", "status": "True"}], 4, WALL)
        assert found["lastTransitionTime"] == "2023-11-14T22:13:20Z"

    def test_a_message_is_cut_to_the_length_that_kubernetes_takes(self) -> None:
        assert dated([replace(self.finding, message="m" * 4097)], [], 4, WALL)[0]["message"] == "m" * 4096

    def test_one_whose_status_stays_keeps_its_time_whatever_else_changes(self) -> None:
        before = dated([replace(self.finding, reason="Other", message="other")], [], 3, WALL - 3600)
        assert dated([self.finding], before, 4, WALL)[0]["lastTransitionTime"] == "2023-11-14T21:13:20Z"

    def test_one_whose_status_turned_gets_a_new_time(self) -> None:
        before = dated([replace(self.finding, status="False")], [], 3, WALL - 3600)
        assert dated([self.finding], before, 4, WALL)[0]["lastTransitionTime"] == "2023-11-14T22:13:20Z"
