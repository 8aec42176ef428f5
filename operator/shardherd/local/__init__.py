"""The herd on one machine: the third composition root, beside the operator and the Spark side. Decides nothing of groups."""
