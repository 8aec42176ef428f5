"""The rules of the consumer group: pure functions of their arguments.

Nothing in here reads a clock, makes an id, logs, or waits. `now` is always a parameter, in seconds of a monotonic clock.

Imports run one way: `planning | consumer > group > assignors > model`; docs/architecture.md says what is where.
"""
