"""What can happen to a world, by its name in the plan, and how everything is healed at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation import changes, changes_of_topics, days, faults_of_processes, faults_of_servers, regroup
from tests.simulation.network import Weather
from tests.simulation.plan import GROWS, RESET, RESTARTS, SHUTDOWN

if TYPE_CHECKING:
    from tests.simulation.world import World

Fault = Callable[["World"], bool]
"""Begins it. False: it could not, since there is nothing that it could happen to."""


def happen(world: World, kind: str) -> bool:
    """Begin a fault or a change by its name in the plan."""
    return _KINDS[kind](world)


def heal(world: World) -> None:
    """No more faults: what stands still goes on, what is cut is joined, what nobody sees is gone."""
    world.say("--- all is healed")
    network = world.network
    network.cut.clear()
    network.armed.clear()
    network.down.clear()
    network.weather = Weather()
    world.api.limit = None
    world.kafka.leaderless.clear()
    for run in world.pods.zombies:
        run.exit("its node is gone")
    for pod in list(world.pods.existing.values()):
        if pod.run is not None:
            pod.run.hang_until = 0.0
            pod.run.process.die_at_await = 0
            _go_on(world, pod.run.process.loop)
    for operator in world.operators:
        operator.process.die_at_await = 0
        _go_on(world, operator.process.loop)
        world.add_endpoint(operator)
    days.wake(world)
    world.source.come_back(list(world.history.shards.values()))
    world.nothing_stands_still()
    world.change_spec(paused=False)


def reset_lost(world: World) -> None:
    """A user sets positions that were lost to what they were, and asks again where he does not know what became of it."""
    world.source.put_right()
    leader = world.leader()
    if leader is None:
        return
    for shard, offset in sorted(world.kafka.unanswered.items()):
        world.timeline.at(world.time, leader.process.loop, leader.force, shard, offset)
    stored = world.history.stored
    for actual in world.history.shards.values():
        row = stored.shards.get(actual.name) if stored is not None else None
        if not actual.present or actual.durable is not None or (actual.highest is None and (row is None or not row.started)):
            continue
        # Of a shard that was made anew it may be that only a copy of what bore its name before is left.
        target = actual.begin if actual.highest is None else actual.highest
        world.timeline.at(world.time, leader.process.loop, leader.force, actual.name, target)


def _go_on(world: World, loop: object) -> None:
    for process in world._processes():
        if process.loop is loop:
            process.loop.resume()


_KINDS: dict[str, Fault] = {
    "consumer crashes": faults_of_processes.crash,
    "consumer crashes at an await": faults_of_processes.crash_at_await,
    "consumer crashes again and again": faults_of_processes.crash_again,
    "consumer stands still": faults_of_processes.stand_still(faults_of_processes.any_consumer, 1.0, 60.0),
    "consumer stands still for minutes": faults_of_processes.stand_still(faults_of_processes.any_consumer, 60.0, 600.0),
    "consumer hangs in a micro-batch": faults_of_processes.hang,
    "consumer is cut off one way": faults_of_processes.cut_consumer(both=False),
    "consumer is cut off": faults_of_processes.cut_consumer(both=True),
    "consumer is deleted by force": faults_of_processes.delete_by_force,
    "query fails in a micro-batch": faults_of_processes.fail_query,
    "operator crashes": faults_of_processes.crash_operator,
    "operator crashes at an await": faults_of_processes.crash_operator_at_await,
    "operator stands still": faults_of_processes.stand_still(faults_of_processes.any_operator, 1.0, 600.0),
    "two leaders": faults_of_processes.make_two_leaders,
    "operator is cut off one way": faults_of_processes.cut_operator,
    "messages are lost": faults_of_servers.change_weather(Weather(loss=0.2)),
    "messages are doubled and reordered": faults_of_servers.change_weather(Weather(double=0.3, delay=2.0)),
    "messages are late": faults_of_servers.be_late,
    "clock jumps": faults_of_processes.jump_clocks,
    "write conflict": faults_of_servers.touch_ownership,
    "reply to a write is lost": faults_of_servers.arm("kube", ("save",), "unanswered"),
    "API server refuses": faults_of_servers.refuse("kube"),
    "ownership is deleted": faults_of_servers.delete_ownership,
    "ownership grows too large": faults_of_servers.limit_ownership,
    "an older ownership is put back": faults_of_servers.put_back_ownership,
    "commits are slow": faults_of_servers.slow_commits,
    "commit lands late": faults_of_servers.arm_commit("late"),
    "operator crashes in a commit": faults_of_processes.crash_in_commit,
    "reply to a commit is lost": faults_of_servers.arm_commit("unanswered"),
    "Kafka refuses": faults_of_servers.refuse("kafka"),
    "offsets are deleted": faults_of_servers.delete_offsets,
    "group is deleted and made again": regroup.make_again,
    "position is set by force": changes.force_position,
    "topics are made anew": changes_of_topics.make_anew,
    "shards vanish": changes_of_topics.vanish,
    "all shards vanish": changes_of_topics.vanish_all,
    "shard splits": changes.change_lineage(1, 2),
    "shards merge": changes.change_lineage(2, 1),
    "shard closes": changes.change_lineage(1, 0),
    "shards appear": changes.add_shards,
    "scale out": changes.scale_out,
    "scale in": changes.scale_in,
    "pod is drained": changes.drain_pod,
    "group is paused": changes.pause_group,
    "order changes": changes.drop_order,
    "assignor changes": changes.change_assignor,
    RESET: changes.reset_positions,
    GROWS: changes.grow_topic,
    RESTARTS: days.restart_operators,
    SHUTDOWN: days.shut_down,
}
