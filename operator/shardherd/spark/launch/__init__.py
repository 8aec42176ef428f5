"""A folder for the path of Python's modules: its `sitecustomize` is imported by every Python that Spark's JVM starts."""
