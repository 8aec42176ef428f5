"""Keyed state in a group with cells, wherever the group runs: its application, its records, and what must come of them.

`trial` is the way in. How a group is run, on this machine or on a cluster, is the affair of the tests that try it.
"""
