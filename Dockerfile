# Three images: `operator` (the operator), `spark` (drivers and executors of Spark applications) and `worker` (plain Python consumers).
# Layers go from what changes least to our own code, which is the last and smallest one of each image.

# The base, by its digest (CONTRIBUTING.md says how it is renewed). Another one of Debian 12 may be given.
ARG BASE=debian:bookworm-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171
FROM ${BASE} AS python
# What most clusters do without, by name: `aws` for the mechanism AWS_MSK_IAM with the identity of a pod, `kerberos` for GSSAPI,
# `delta` and `postgresql` for the sinks of these names (they are in the image `spark` only); AWS and Kerberos are for all images.
ARG EXTRAS
RUN packages="ca-certificates python3 tini" \
 && for each in ${EXTRAS}; do \
        case $each in \
            aws | delta | postgresql) ;; \
            kerberos) packages="$packages python3-gssapi" ;; \
            *) echo "EXTRAS names $each: it knows aws, delta, kerberos and postgresql" >&2; exit 1 ;; \
        esac; \
    done \
 && apt-get update \
 && apt-get install -y --no-install-recommends $packages \
 && mkdir /opt/extras \
 && if [ -e /usr/lib/python3/dist-packages/gssapi ]; then \
        ln -s /usr/lib/python3/dist-packages/gssapi /usr/lib/python3/dist-packages/decorator.py /opt/extras/; \
    fi \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* \
 && groupadd --gid 10001 shardherd \
 && useradd --uid 10001 --gid 10001 --create-home --shell /usr/sbin/nologin shardherd
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1

# What installs packages stays out of the images: each has only the finished environment, /opt/venv.
FROM python AS builder
# Where the build machine's authorities are mounted, if it has some of its own, and which index to ask.
# (Repeated in each stage that uses them: not every builder hands them on.)
ARG PIP_CERT
ARG PIP_INDEX_URL
RUN apt-get update && apt-get install -y --no-install-recommends python3-pip python3-venv
RUN python3 -m venv --without-pip /opt/venv
# What builds packages from source stands beside the environment, with hashes; pip would fetch the newest of it by itself.
COPY requirements/build.lock /build/
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --require-hashes --no-deps --only-binary :all: --target /opt/build -r /build/build.lock

FROM builder AS code
ARG PIP_CERT
ARG PIP_INDEX_URL
COPY pyproject.toml README.md LICENSE /build/
COPY operator /build/operator
# Files get a fixed whole second as their time, so that the layer is the same whenever it is made.
RUN --mount=type=cache,target=/root/.cache/pip \
    PYTHONPATH=/opt/build pip --python /opt/venv/bin/python install --no-build-isolation --no-deps --no-compile /build \
 && echo /opt/extras > /opt/venv/lib/python3.11/site-packages/shardherd-extras.pth \
 && find /opt/venv/lib/python3.11/site-packages -exec touch --no-dereference --date=@1700000000 {} + \
 && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/venv/lib/python3.11/site-packages

FROM builder AS operator-packages
ARG PIP_CERT
ARG PIP_INDEX_URL
ARG EXTRAS
COPY requirements/operator.lock requirements/aws.lock /build/
RUN --mount=type=cache,target=/root/.cache/pip \
    for lock in operator ${EXTRAS}; do \
        [ ! -e /build/$lock.lock ] || pip --python /opt/venv/bin/python install --require-hashes --only-binary :all: --no-deps -r /build/$lock.lock || exit 1; \
    done

FROM python AS operator
# Its threads each parse answers now and then: with an arena each, glibc keeps their peaks together for ever. The threshold is
# glibc's own to begin with; once set, it does not grow with what was freed, so that large buffers go back at once.
ENV MALLOC_ARENA_MAX=2
ENV MALLOC_TRIM_THRESHOLD_=131072
COPY --from=operator-packages /opt/venv /opt/venv
COPY --from=code /opt/venv /opt/venv
USER 10001:10001
WORKDIR /home/shardherd
ENTRYPOINT ["/usr/bin/tini", "--", "shardherd"]
CMD ["operator"]

FROM builder AS worker-packages
ARG PIP_CERT
ARG PIP_INDEX_URL
ARG EXTRAS
COPY requirements/worker.lock requirements/aws.lock /build/
RUN --mount=type=cache,target=/root/.cache/pip \
    for lock in worker ${EXTRAS}; do \
        [ ! -e /build/$lock.lock ] || pip --python /opt/venv/bin/python install --require-hashes --only-binary :all: --no-deps -r /build/$lock.lock || exit 1; \
    done
COPY docker/trim-packages.sh /build/
RUN /bin/sh /build/trim-packages.sh /opt/venv/lib/python3.11/site-packages

FROM python AS worker
ENV MALLOC_ARENA_MAX=2
ENV NUMBA_CACHE_DIR=/tmp/numba
# Where an application's own modules are looked for: a processor is named as module:Class.
ENV PYTHONPATH=/opt/app
COPY --from=worker-packages /opt/venv /opt/venv
COPY --from=code /opt/venv /opt/venv
RUN --mount=type=cache,target=/var/cache/objects \
    python -m shardherd.source.compiled.compiling /var/cache/objects \
 && cp -R /var/cache/objects /opt/venv/lib/python3.11/site-packages/shardherd/source/compiled/
COPY docker/driver-entrypoint.sh /opt/shardherd/
COPY spark_apps/clicks-python /opt/shardherd/apps/clicks-python
COPY spark_apps/orders-kinesis /opt/shardherd/apps/orders-kinesis
USER 10001:10001
WORKDIR /home/shardherd
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/shardherd/driver-entrypoint.sh"]

FROM builder AS spark-packages
ARG PIP_CERT
ARG PIP_INDEX_URL
ARG EXTRAS
COPY requirements/spark.lock requirements/aws.lock requirements/delta.lock requirements/postgresql.lock /build/
RUN --mount=type=cache,target=/root/.cache/pip \
    PYTHONPATH=/opt/build pip --python /opt/venv/bin/python install --require-hashes --no-build-isolation --use-pep517 \
        --ignore-installed --no-deps -r /build/spark.lock \
 && for lock in ${EXTRAS}; do \
        [ ! -e /build/$lock.lock ] || pip --python /opt/venv/bin/python install --require-hashes --only-binary :all: --no-deps -r /build/$lock.lock || exit 1; \
    done
COPY docker/trim-packages.sh /build/
RUN /bin/sh /build/trim-packages.sh /opt/venv/lib/python3.11/site-packages

FROM python AS spark
RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* \
 && ln -s /usr/lib/jvm/java-17-openjdk-* /opt/java
ENV JAVA_HOME=/opt/java \
    SPARK_HOME=/opt/venv/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/venv/bin/python \
    NUMBA_CACHE_DIR=/tmp/numba
COPY --from=spark-packages /opt/venv /opt/venv
COPY --from=code /opt/venv /opt/venv
# For every processor that is shipped for, whatever this one is: workers load what is there and compile nothing. What was compiled
# of the same sources before is not compiled again.
RUN --mount=type=cache,target=/var/cache/objects \
    python -m shardherd.source.compiled.compiling /var/cache/objects \
 && cp -R /var/cache/objects /opt/venv/lib/python3.11/site-packages/shardherd/source/compiled/
COPY docker/driver-entrypoint.sh docker/executor-entrypoint.sh /opt/shardherd/
COPY spark_apps /opt/shardherd/apps
USER 10001:10001
WORKDIR /home/shardherd
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/shardherd/executor-entrypoint.sh"]
