"""The commands that look at groups and change them, for whoever has kubectl: what each does, for the command line's help."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "status": "groups, and the conditions of one",
        "shards": "each shard of a group: state, holder, epoch, position, lag",
        "lag": "how much a group has yet to read, and how fast it reads",
        "explain": "why so many consumers, why this assignment, why a shard does not move",
        "pause": "grant and move nothing, until it is resumed",
        "resume": "go on after a pause",
        "drain": "have a consumer give up its shards and get none",
        "offsets": "positions: `get` them, or `reset` them",
        "rebalance": "what the assignor would move now (--dry-run)",
        "doctor": "whether the cluster is fit to run groups, and what is not",
        "page": "groups in a browser: serve the operator's page to this machine",
        "top": "status and lag, again and again",
        "report": "all that is known of a group in one archive, without secrets",
        "render": "what the controller would create for a manifest",
        "completion": "the script that completes commands in a shell",
    }
)
