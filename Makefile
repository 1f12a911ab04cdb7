# Every target sets up what it needs in .venv, the first time and whenever pyproject.toml or the constraints change.
# Needed beforehand: git, make and Python >= 3.10 with venv. `make` alone lists the targets.
# On Linux the usual torch carries CUDA, several gigabytes; PIP_EXTRA_INDEX_URL=<PyTorch's index of CPU builds>
# before the first make gets the small one.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
STUBS_VENV := .venv-stubs
AUDIT_VENV := .venv-audit
PIP := $(VENV)/bin/python -m pip install --quiet --quiet --disable-pip-version-check
# Small models on a few cores: threads of one process only get in each other's way. Nothing is fetched at run time.
TEST_ENVIRONMENT := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
# The stub generator has wheels for these Pythons only.
STUBS_PYTHON ?= $(shell for python in $(PYTHON) python3.11 python3.10; do \
	$$python -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 10), (3, 11)))' 2>/dev/null \
	&& echo $$python && break; done)

JSON ?=
ONLY ?=
OPERATIONS ?= 20000
PYTEST_ARGS ?=
QUICK ?=
LISTEN ?= 127.0.0.1:50051
METRICS_LISTEN ?= 127.0.0.1:9090
STATE_DIR ?= selector-state
INPUTS ?= 100000
KILLS ?= 200
SEED ?= 0
SEEDS ?= 8
MINUTES ?= 10
TRAINERS ?= trl verl openrlhf

.PHONY: help demo serve test test-slow test-adapters test-compat resume lint audit fuzz crash soak bench learning docs stubs stubs-check \
	clean

help:  ## this list
	@echo "Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo  ## trains a tiny model with and without selection and reports both; JSON=file
	@echo "Running the demo on the CPU; the report goes to demo-output/."
	@$(TEST_ENVIRONMENT) $(VENV)/bin/selector demo --output demo-output $(if $(JSON),--json "$(JSON)")

serve: $(VENV)/.installed-demo  ## the service; LISTEN=host:port METRICS_LISTEN=host:port STATE_DIR=folder
	@$(VENV)/bin/selector serve --listen $(LISTEN) --metrics-listen $(METRICS_LISTEN) --state-dir "$(STATE_DIR)"

test: $(VENV)/.installed-dev  ## the quick tests, a few minutes
	@$(TEST_ENVIRONMENT) $(VENV)/bin/python -m pytest tests -q -n 2 --dist loadfile $(PYTEST_ARGS)

test-slow: $(VENV)/.installed-dev  ## everything that the quick tests leave out
	@$(TEST_ENVIRONMENT) $(VENV)/bin/python -m pytest tests -q -m slow $(PYTEST_ARGS)

test-adapters: $(VENV)/.installed-dev  ## the adapters against the real trainers; TRAINERS="trl" for some
	@for trainer in $(TRAINERS); do \
		echo "Testing the adapter of $$trainer."; \
		python=$$($(VENV)/bin/python scripts/environment.py $$trainer); \
		$(TEST_ENVIRONMENT) SELECTOR_PYTHON=$(CURDIR)/$(VENV)/bin/python $$python -m pytest tests/trainers/$$trainer \
			-q -o filterwarnings=default $(PYTEST_ARGS); \
	done

test-compat: $(VENV)/.installed-dev  ## the package, built and installed with the oldest and newest grpcio and protobuf
	@echo "Installing the package into new environments: a few minutes the first time."
	@$(TEST_ENVIRONMENT) $(VENV)/bin/python -m pytest tests/packaging -q -m slow $(PYTEST_ARGS)

resume: $(VENV)/.installed-dev  ## compares the service with a model that is never interrupted; OPERATIONS=20000 JSON=file
	@$(TEST_ENVIRONMENT) $(VENV)/bin/python -m tests.resume --operations $(OPERATIONS) $(if $(JSON),--json "$(JSON)")

lint: $(VENV)/.installed-dev  ## ruff, mypy, and the checks of the schema, the scripts and the Dockerfile
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/buf lint proto
	@$(VENV)/bin/shellcheck .ci/run deploy/create-secrets.sh
	@$(VENV)/bin/hadolint Dockerfile
	@echo "lint: all clean"

audit: $(VENV)/.installed-dev $(AUDIT_VENV)/.installed  ## known vulnerabilities of what is installed
	@$(VENV)/bin/python -m pip check --disable-pip-version-check
	@$(AUDIT_VENV)/bin/python scripts/audit.py $(VENV)/bin/python

soak: $(VENV)/.installed-dev  ## 64 trainers and misbehaving callers against one service; MINUTES=10 JSON=file
	@echo "Putting the service under load for $(MINUTES) minutes."
	@$(TEST_ENVIRONMENT) $(VENV)/bin/python -m tests.load.soak --minutes $(MINUTES) $(if $(JSON),--json "$(JSON)")

crash: $(VENV)/.installed-dev  ## kills the service while it works and checks that nothing is lost; KILLS=200 SEED=0 JSON=file
	@echo "Killing the service $(KILLS) times: about half an hour for 200 on two cores."
	@$(TEST_ENVIRONMENT) $(VENV)/bin/python -m tests.crash --kills $(KILLS) --seed $(SEED) $(if $(JSON),--json "$(JSON)")

fuzz: $(VENV)/.installed-dev  ## hostile input for every RPC and stored format; INPUTS=100000 SEED=0 JSON=file
	@echo "Trying $(INPUTS) inputs: about ten minutes for 100,000 on two cores."
	@$(TEST_ENVIRONMENT) $(VENV)/bin/python -m tests.fuzz --inputs $(INPUTS) --seed $(SEED) --jobs 2 \
		$(if $(JSON),--json "$(JSON)")

bench: $(VENV)/.installed-dev  ## what the service costs, an hour; ONLY=predict for one, QUICK=1 to see that it runs, JSON=file
	@$(TEST_ENVIRONMENT) $(VENV)/bin/python -m bench.performance $(if $(ONLY),--only "$(ONLY)") \
		$(if $(filter-out 0,$(QUICK)),--quick) $(if $(JSON),--json "$(JSON)")

learning: $(VENV)/.installed-dev  ## what choosing and reusing prompts saves a tiny policy, some hours; SEEDS=8 JSON=file
	@$(TEST_ENVIRONMENT) $(VENV)/bin/python -m bench.learning run --seeds $(SEEDS) $(if $(JSON),--json "$(JSON)")

docs:  ## checks that links, pictures and commands that the pages name are there
	@$(PYTHON) scripts/check_docs.py

stubs: $(STUBS_VENV)/.installed  ## writes selector/v1 anew from proto/
	@$(STUBS_VENV)/bin/python scripts/generate_stubs.py

stubs-check:  ## fails when selector/v1 is not what proto/ generates
ifeq ($(STUBS_PYTHON),)
	@echo "SKIPPED: the stubs were NOT checked: the generator needs Python 3.10 or 3.11; set STUBS_PYTHON=path"
else
	@$(MAKE) $(STUBS_VENV)/.installed
	@$(STUBS_VENV)/bin/python scripts/generate_stubs.py --check
endif

clean:  ## removes what building, testing and the demo left; keeps .venv
	rm -rf build dist *.egg-info demo-output bench-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf .venv-compat $(STUBS_VENV) $(AUDIT_VENV)
	find selector clients trainer_adapters scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +

# --- environments ------------------------------------------------------------------------------------------------

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or newer is needed; name one with: make PYTHON=python3.11 …" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "Python's venv module is needed (Debian: apt-get install python3-venv)." >&2; exit 1; }

$(VENV)/.installed-demo: pyproject.toml constraints-cpu.txt | $(VENV)/bin/python
	@echo "Installing the service and the demo into $(VENV): once, a few minutes, mostly the download of torch."
	@$(PIP) --constraint constraints-cpu.txt --editable '.[demo]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints-cpu.txt | $(VENV)/bin/python
	@echo "Installing the service and the test tools into $(VENV): once, a few minutes, mostly the download of torch."
	@$(PIP) --constraint constraints-cpu.txt --editable '.[dev]'
	@touch $@ $(VENV)/.installed-demo

$(STUBS_VENV)/.installed: scripts/stub-requirements.txt
	@test -n "$(STUBS_PYTHON)" || \
		{ echo "The stub generator needs Python 3.10 or 3.11; set STUBS_PYTHON=path" >&2; exit 1; }
	@echo "Installing the stub generator into $(STUBS_VENV)."
	@$(STUBS_PYTHON) -m venv --clear $(STUBS_VENV)
	@$(STUBS_VENV)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --requirement $<
	@touch $@

$(AUDIT_VENV)/.installed: scripts/audit-requirements.txt | $(VENV)/bin/python
	@echo "Installing the audit into $(AUDIT_VENV)."
	@$(VENV)/bin/python -m venv --clear $(AUDIT_VENV)
	@$(AUDIT_VENV)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --requirement $<
	@touch $@
