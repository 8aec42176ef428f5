"""What relies on how kafka-python is made inside. Nothing else of the product does.

Imports nothing: `unfinished_package` must run before anything imports kafka-python.
"""
