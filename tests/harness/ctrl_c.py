"""How a test starts a command that it ends by Ctrl-C. Asserts nothing."""

CTRL_C_ENDS = ("env", "--default-signal=INT")
"""Goes before the command: what a shell runs in the background ignores the signal, and so do all children of the tests."""
