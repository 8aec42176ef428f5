"""ConsumerGroups on one machine: a composition root, beside the operator's and the application's. Decides nothing of groups."""
