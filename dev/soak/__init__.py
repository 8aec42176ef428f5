"""A long run on the real cluster: three groups, faults drawn from a seed, and a count of what was lost, repeated, or grew."""
