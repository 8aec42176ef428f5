"""The demo: one command that shows a consumer group at work on a real cluster, and counts whether its promises held.

`python -m dev.demo up` runs it for a person; the end-to-end tests drive the same functions. It may use the cluster tool
(`dev.cluster`), kubectl, helm and Kafka's own tools, and reads what the sink holds. It never reaches into the operator.
"""
