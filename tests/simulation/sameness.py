"""Which states of the small world are one: those that go on in the same way, whatever their counters have run up to.

Called by the exploration for every state that it comes to.
"""

from __future__ import annotations

from tests.simulation.small import NAMES, Small


def key(small: Small) -> object:
    """Equal for states that go on in the same way: revisions and sequence numbers count from the group's own."""
    state = small.group._state
    revision = state.record.revision
    if small.known is None:
        small.known = hash(_group_key(small))
    parties = []
    for at, consumer in enumerate(small.consumers):
        tracker = consumer.tracker
        session = state.sessions.get(NAMES[at])
        seq = session.seq if session is not None else 0
        sent, answer = consumer.sent, consumer.answer
        parties.append(
            (
                consumer.start,
                consumer.alive,
                consumer.seq - seq,
                sent and (sent.incarnation.start, sent.seq - seq, sent.revision - revision, sent.held),
                answer and (answer[1].revision - revision, answer[1].confirmed),
                consumer.batch and tuple(sorted(consumer.batch.items(), key=lambda item: item[0])),
                consumer.proof,
                tracker.revision - revision,
                tuple(
                    (shard, grant.epoch, grant.position, grant.done, grant.durable, grant.revoked)
                    for shard, grant in tracker._grants.items()
                ),
                tuple(tracker._given_up.items()),
            )
        )
    committing = small.committing
    return (
        small.known,
        tuple(small.durable.values()),
        tuple(small.written.values()),
        committing and (tuple(committing.offsets.items()), committing.who, committing.start),
        tuple(parties),
        (small.crashes, small.pauses, small.delays),
    )


def _group_key(small: Small) -> object:
    state, clocks = small.group._state, small.group._state.clocks
    revision = state.record.revision
    sessions = tuple(
        (
            name,
            session.last_heard - small.now,
            session.heard,
            session.revision - revision,
            tuple(sorted(session.named)),
            session.draining,
        )
        for name, session in sorted(state.sessions.items())
    )
    shards = tuple(
        (
            row.state,
            row.holder,
            row.incarnation,
            row.next_consumer,
            row.owner_epoch,
            row.held_since_epoch,
            row.revision - revision,
        )
        for row in state.shards.values()
    )
    return (
        shards,
        tuple((row.incarnation, row.present, row.ended, row.superseded) for row in state.consumers.values()),
        sessions,
        tuple(state.in_flight),
        (clocks.due, clocks.replan, clocks.gather_until - small.now > 0),
    )
