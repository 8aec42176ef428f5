"""shardherd: scales Spark applications to the shards of a stream and decides which application holds which shard.

The package has four composition roots: `shardherd.cli` (the operator), `shardherd.spark` (the application), `shardherd.local`
(one machine) and `shardherd.testing` (a test of an application).
Importing this module must stay free of side effects and of third-party packages.
"""

__version__ = "0.1.0"
