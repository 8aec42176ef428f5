#!/bin/sh
# Starts one consumer in its pod, a Spark application or a plain Python process:
# tini -- driver-entrypoint.sh <mainApplicationFile> <arguments...>, or -m shardherd.worker <module:Class>
#
# Counts the starts of this pod in SHARDHERD_RUN_DIR, a volume that outlives the container. The count is half of the
# consumer's incarnation; it is written to the termination message too, so that the status of a dead container names exactly
# who died. It ends in exec: SIGTERM must reach Python, and no JVM.
set -eu

if [ $# -eq 0 ]; then
    echo "driver-entrypoint.sh: no mainApplicationFile was given" >&2
    exit 64
fi
: "${SHARDHERD_RUN_DIR:?is not set: it names a folder on a volume that outlives the container}"

starts=0
if [ -s "$SHARDHERD_RUN_DIR/starts" ]; then
    read -r starts < "$SHARDHERD_RUN_DIR/starts"
fi
SHARDHERD_START=$((starts + 1))
export SHARDHERD_START
# Written aside and renamed: a container killed here leaves a whole number behind.
echo "$SHARDHERD_START" > "$SHARDHERD_RUN_DIR/starts.new"
mv "$SHARDHERD_RUN_DIR/starts.new" "$SHARDHERD_RUN_DIR/starts"
echo "{\"start\": $SHARDHERD_START}" > "${SHARDHERD_TERMINATION_LOG:-/dev/termination-log}"
# A socket of the run before would be mistaken for the agent's.
rm -f "$SHARDHERD_RUN_DIR/agent.sock"
echo $$ > "$SHARDHERD_RUN_DIR/pid"

exec python "$@"
