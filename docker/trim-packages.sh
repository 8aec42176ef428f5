#!/bin/sh
# Removes from an installed environment what no pod of ours runs: samples, tests and C headers. Licences stay.
# Argument: its site-packages folder.
set -eu
cd "$1"
rm -rf pyspark/examples pyspark/data pyarrow/include pyarrow/tests
find numba numpy -type d -name tests -prune -exec rm -rf {} +
