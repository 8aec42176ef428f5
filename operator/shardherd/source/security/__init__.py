"""How a client of Kafka proves who it is: settings, credentials, and what keeps those fresh that expire.

Shared by whoever connects: the source's readers and the operator. Imports nothing: a mechanism is paid for by who uses it.
"""
