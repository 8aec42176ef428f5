"""What takes days: offsets that a broker forgets, an operator that is restarted every few hours, and a long shutdown.

Called by the world in its schedules of days, whose processes say everything so many times less often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.plan import DAY, RESTARTS, SHUTDOWN

if TYPE_CHECKING:
    from tests.simulation.world import World

CHECK = 3600.0
"""Seconds between the broker's looks at what it may forget."""

HOUR = 3600.0


def begin(world: World) -> None:
    """From now on the broker forgets what was not committed again for long."""

    def look() -> None:
        if world.leader() is not None and not world.network.down.get("kafka"):
            world.kafka.retention.passes(CHECK)
        if not world.plan.kinesis:
            world.kafka.expire()
        world.timeline.after(CHECK, look)

    world.timeline.after(CHECK, look)


def restart_operators(world: World) -> bool:
    """The operator's container ends every few hours, and is started again in its pod."""
    world.history.counts[RESTARTS] += 1
    hours = world.rng.uniform(2.0, 20.0)

    def again() -> None:
        if world.healed:
            return
        leader = world.leader()
        if leader is not None:
            leader.starts_again = True
            leader.process.kill()
        # Here the source is looked at every hour, or less often, and not every few seconds: twice in each life all the same.
        world.timeline.after(max(world.rng.uniform(0.5, 1.2) * hours * HOUR, 1.5 * world.plan.discovery), again)

    world.timeline.after(hours * HOUR, again)
    return True


def shut_down(world: World) -> bool:
    """A user shuts down everything, and starts it again days later: perhaps later than the broker keeps offsets."""
    # What is to be started again of a group that is deleted comes with the next one of its name.
    if world.asleep or world.deleted or world.spec.leaving or world.history.rebuilding:
        return False
    world.history.counts[SHUTDOWN] += 1
    world.asleep = True
    world.pods.sleep()

    def stop() -> None:
        if world.asleep:
            for operator in list(world.operators):
                operator.process.kill()

    world.timeline.after(300.0, stop)
    world.timeline.after(world.rng.uniform(2.0, 9.0) * DAY, wake, world)
    return True


def wake(world: World) -> None:
    """Everything is started that was shut down."""
    if not world.asleep:
        return
    world.say("all is started again")
    world.asleep = False
    for _ in range(world.plan.operators):
        world.start_operator()
    world.pods.wake()
