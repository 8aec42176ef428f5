"""From what the controller observed to what it does: how many consumers, which pods, which conditions and status.

`plan.plan` is the way in. Must not decide who holds what: it reads that from the coordinator's view of the group.
"""
