"""The ownership of one group: who holds which shard, under which epoch, and which positions are durable.

`group.Group` is the way in: every request goes through it. Must not know of pods, conditions or the number of consumers.
"""
