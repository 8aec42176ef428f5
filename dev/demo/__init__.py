"""The demo: one command that shows a consumer group at work, and counts whether its promises held.

`python -m dev.demo machine` runs it for a person on this machine alone, `python -m dev.demo cluster` on a real Kubernetes.
Tests drive the same functions. It may use the cluster tool (`dev.cluster`), kubectl, helm, `shardherd local` and Kafka's own
tools, and reads what the sink holds. It never reaches into the operator.
"""
