#!/bin/sh
# Removes from an installed environment what no pod of ours runs: samples, tests and C headers. Licences stay. Also pyspark's and
# py4j's second copies, in archives that Spark puts before the first ones for every Python process that it starts: they are not
# compiled, so that each of half a dozen processes would compile them for itself, for 0.4 s.
# Argument: its site-packages folder.
set -eu
cd "$1"
rm -rf pyspark/examples pyspark/data pyspark/python/lib pyarrow/include pyarrow/tests
find numba numpy -type d -name tests -prune -exec rm -rf {} +
