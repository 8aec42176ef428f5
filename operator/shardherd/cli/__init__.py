"""The commands `shardherd` and `kubectl shardherd`, and the operator, which is one of them."""

from shardherd.cli.command_line import complete, main

__all__ = ["complete", "main"]
