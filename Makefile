# Every command of the project. `make help` lists them.
SHELL := /bin/sh
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Whatever cluster the caller talks to is none of ours.
unexport KUBECONFIG
# Python keeps what it has compiled: a Spark application starts half a dozen processes of it.
unexport PYTHONDONTWRITEBYTECODE

PY := .venv/bin/python
PYTEST := $(PY) -m pytest
CLUSTER ?= demo
SEEDS ?= 10000
SEED_START ?=
SIMULATION ?=
MUTANTS ?= 300
ROWS ?= 16000000
MINUTES ?= 60
FAULTS ?= random
SEED ?=
IMAGE ?= shardherd:dev
REPOSITORY ?=

.PHONY: help
help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: venv
venv: ## Make .venv from the lock file (every other target does it by itself).
	@dev/bootstrap

.PHONY: demo
demo: ## Run a consumer group on this machine, without Kubernetes: real Kafka, real Spark; grow, kill, scale in, and count.
	@if [ -n "$(DEMO_CONTEXT)" ]; then echo "DEMO_CONTEXT belongs to make demo-cluster" >&2; exit 2; fi
	@dev/bootstrap kafka
	@$(PY) -m dev.demo machine

.PHONY: demo-cluster
demo-cluster: venv ## The same on a real Kubernetes, which it builds here first. (DEMO_CONTEXT=...: on a cluster of yours.)
	@$(PY) -m dev.demo cluster $(if $(DEMO_CONTEXT),--context "$(DEMO_CONTEXT)" --kubeconfig "$(KUBECONFIG)" --image "$(IMAGE)" --kafka "$(KAFKA_BOOTSTRAP)")

.PHONY: demo-down
demo-down: venv ## Remove all that both demos started.
	@$(PY) -m dev.demo down $(if $(DEMO_CONTEXT),--context "$(DEMO_CONTEXT)" --kubeconfig "$(KUBECONFIG)" --kafka "$(KAFKA_BOOTSTRAP)")

.PHONY: test
test: venv ## Everything: lint, types, all tests, end to end on a real node.
	@$(PY) -m dev.check

.PHONY: test-long
test-long: venv ## The tests that take long, and the others with many more examples (SHARDHERD_LONG=1).
	@SHARDHERD_LONG=1 $(PYTEST) tests/unit tests/property tests/simulation tests/integration tests/e2e

.PHONY: simulate
simulate: venv ## Simulated schedules of a whole group (SEEDS=10000), from a start that it draws and prints; again: SEED_START=n.
	@$(PY) -m tests.simulation --seeds $(SEEDS) $(if $(SEED_START),--start $(SEED_START))

.PHONY: planted-bugs
planted-bugs: venv ## Look for each planted bug among the first 1,000 schedules; RENEW=1: and write down which seed shows it, for `make test`.
	@$(PY) -m tests.simulation --planted-bugs --seeds 1000 $(if $(RENEW),--renew)

.PHONY: lint
lint: venv ## Format, lint, types and import contracts.
	@$(PY) -m dev.check lint

.PHONY: unit
unit: venv ## The quick tests: no process but pytest's own.
	@$(PYTEST) tests/unit tests/property tests/simulation

.PHONY: coverage
coverage: venv ## Whether the quick tests take every line and branch of the core.
	@$(PYTEST) -p tests.harness.coverage tests/unit tests/property

.PHONY: mutation
mutation: venv ## Whether a test fails for every change that mutmut makes to the core (MODULES="group/fsm" for some of it); SIMULATION=1: how many of a sample the simulation alone notices (MUTANTS=300).
	@nice $(PY) -W ignore -m $(if $(SIMULATION),tests.simulation.mutants --mutants $(MUTANTS) $(if $(SEED_START),--draw $(SEED_START)),dev.mutation) $(MODULES)

.PHONY: integration
integration: venv ## Contract and integration tests, on a real API server and broker.
	@$(PYTEST) tests/contract tests/integration

.PHONY: chart
chart: venv ## The Helm chart: lint, render, apply to a real API server.
	@$(PYTEST) tests/chart

.PHONY: e2e
e2e: venv ## End to end on a real node: drives what `make demo-cluster` does and asserts its table.
	@$(PYTEST) tests/e2e

.PHONY: soak
soak: venv ## Three groups on a real cluster under faults drawn from a seed that it prints; what was lost, repeated or grew (MINUTES=60, FAULTS=random, SEED=n).
	@$(PY) -m dev.soak --minutes $(MINUTES) --faults "$(FAULTS)" $(if $(SEED),--seed $(SEED)) $(if $(SHARDHERD_TEST_CLUSTER),--name "$(SHARDHERD_TEST_CLUSTER)")

.PHONY: bench-assignor
bench-assignor: venv ## The Sticky assignor against Kafka's own, at a million shards.
	@$(PY) -m benchmarks.assignor

.PHONY: cluster-up
cluster-up: venv ## Start the real single-node cluster, Kafka and Prometheus (CLUSTER=demo).
	@$(PY) -m dev.cluster up --name $(CLUSTER)

.PHONY: cluster-down
cluster-down: venv ## Remove that cluster and all its state.
	@$(PY) -m dev.cluster down --name $(CLUSTER)

.PHONY: wheel
wheel: venv ## Build wheel and sdist alone; the wheel has the decoder's loops compiled for every processor that is shipped for (dist/).
	@$(PY) -m dev.release packages

.PHONY: release
release: venv ## All that users install, of the commit that is checked out, into dist/: packages, chart, images, bills of materials, checksums.
	@$(PY) -m dev.release

.PHONY: images
images: venv ## Build the three images.
	@$(PY) -m dev.cluster images

.PHONY: bench-coordinator
bench-coordinator: venv ## What one coordinator carries: heartbeats, a join, checkpoints.
	@$(PY) -m benchmarks.coordinator

.PHONY: bench-rebalance
bench-rebalance: venv ## A join, a leave, growth and a death, against both of Kafka's protocols.
	@benchmarks/environment
	@.venv-bench/bin/python -m benchmarks.rebalance

.PHONY: bench-source
bench-source: venv ## Our source against Spark's own Kafka source (ROWS=16000000).
	@$(PY) -m benchmarks.source --rows $(ROWS)

.PHONY: bench-kinesis
bench-kinesis: venv ## Reading a shard of Kinesis against boto3's plain loop and what AWS allows; what a coordinator asks.
	@$(PY) -m benchmarks.kinesis

.PHONY: bench-sinks
bench-sinks: venv ## The sinks that are exactly once against Spark's own writers (ROWS=400000).
	@SHARDHERD_BENCH_JARS=$$($(PY) -c 'from dev.cluster.tools import Tools; print(Tools().spark_jars)') \
		$(PY) -m benchmarks.sinks --rows $(if $(filter command line,$(origin ROWS)),$(ROWS),400000)

.PHONY: bench-state
bench-state: venv ## Cells that move with their state against a query that is started anew (MEGABYTES=10: of state in each, else 10 and 1000).
	@benchmarks/environment
	@$(PY) -m benchmarks.state --megabytes $(or $(MEGABYTES),10 1000)

.PHONY: bench-worker
bench-worker: venv ## A worker against confluent-kafka's and kafka-python's consumers, with a trivial handler.
	@benchmarks/environment
	@$(PY) -m benchmarks.worker

.PHONY: bench-operator
bench-operator: venv ## 1,000 groups applied at once to a real control plane with played nodes.
	@$(PY) -m benchmarks.operator

.PHONY: docs
docs: venv ## Make a site of the documentation (site/; REPOSITORY=https://...: where the files of the repository are to be seen).
	@NO_MKDOCS_2_WARNING=1 SHARDHERD_REPOSITORY="$(REPOSITORY)" $(PY) -m mkdocs build --strict --clean
	@echo "to read it: python3 -m http.server -d site, then http://localhost:8000"

.PHONY: lock
lock: venv ## Resolve the dependencies again into requirements/*.lock; UPGRADE=1: the newest of everything.
	@dev/lock
