"""Kafka's side of reading: connections, what topics and partitions there are, where they begin and end, raw record batches.

Says which errors are worth another try; decides nothing about which records are read. Imports nothing:
planners must start fast.
"""
