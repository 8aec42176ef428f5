"""Kafka as a group's source and as the keeper of its durable positions; `connector` opens both.

Imports nothing: the source's workers use `manager` alone, and must start fast.
"""
