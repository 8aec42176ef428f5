#!/bin/sh
# Removes from an installed environment what no pod of ours needs. Argument: its site-packages folder.
set -eu
cd "$1"
rm -rf pyspark/examples pyspark/data pyspark/licenses
