"""One run of a consumer towards the coordinator: heartbeats, checkpoints, the watch over silence, and leaving.

Written once for every kind of consumer: the agent of `spark` and the plain consumer of `client` are owners of a session. It
must not know what reads the shards, nor how requests are sent.
"""
