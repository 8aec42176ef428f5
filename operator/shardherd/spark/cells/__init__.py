"""Keyed state that moves with its shards: one streaming query for every cell that this consumer holds.

`shardherd.spark.run_cells` is the way in. Nothing is imported here: the stream reader's process has no use for it.
"""
