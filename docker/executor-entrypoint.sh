#!/bin/bash
# Starts one Spark executor from the SPARK_* environment that Spark gives to its pods; the first argument is `executor`.
# Spark's packages from PyPI have no such script.
set -eu

if [ "${1:-}" != executor ]; then
    echo "executor-entrypoint.sh: expected 'executor', got '${1:-}'. Drivers are started by driver-entrypoint.sh." >&2
    exit 64
fi

options=()
while IFS= read -r name; do
    options+=("${!name}")
done < <(compgen -v | grep -E '^SPARK_JAVA_OPT_[0-9]+$' | sort -t_ -k4 -n)

classpath="${SPARK_EXTRA_CLASSPATH:+$SPARK_EXTRA_CLASSPATH:}$SPARK_HOME/jars/*"
if [ -n "${SPARK_CONF_DIR:-}" ]; then
    classpath="$SPARK_CONF_DIR:$classpath"
fi

exec "$JAVA_HOME/bin/java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classpath" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
