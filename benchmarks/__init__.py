"""Comparisons with what people use today, each measured side by side in one run. See README.md."""
