"""The ports on one machine: ownership and objects in SQLite, pods as child processes. Linux only. Decides nothing of groups."""
