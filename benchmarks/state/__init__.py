"""Keyed state that moves: cells against one Spark query that is stopped and started."""
