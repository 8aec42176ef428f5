"""The read-only page: what a browser is shown of groups, and the server that shows it.

The composition roots (`cli`, `local`) serve it from an operator's own views; `inspect` serves what it reads from an operator
through the API server. Nothing here changes anything, or judges a group: what it says is the status's, the coordinator's view,
and `core.planning`'s words for both.
"""
