# Each target installs its packages into .venv: the core for training, and more for tests and docs. They are installed
# again after changes to pyproject.toml or constraints.txt.

# Python 3.11 or 3.12. It is used once, to create .venv.
PYTHON ?= python3
EXPERIMENT ?= dreamer_ataripong
# Arguments of the command: make train ARGS="seed=2 env.num_envs=4", make test ARGS="-k replay"
ARGS ?=

VIDEO := experiments/pretrained_pong.mp4
FIRST := experiments/first
BIN := .venv/bin
CORE := .venv/.core
READY := .venv/.installed
SITE_READY := .venv/.docs
# Two test workers per core, because many tests wait for processes that they kill.
WORKERS := $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
PEERS := .venv-peers
PEERS_READY := .venv-peers/.installed
JAX := .venv-peers-jax
JAX_READY := .venv-peers-jax/.installed
# Otherwise every test process would compile all modules.
unexport PYTHONDONTWRITEBYTECODE
# No notices of newer versions, because constraints.txt decides.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: help install train first test test-slow test-runs test-heapwatch test-export gpu bench bench-peers lint format doctor docs docs-figures clean

help:
	@echo "make train         record a video of the bundled agent, then train on Atari Pong (options: EXPERIMENT=dreamer_catch, ARGS=...). Repeat the command to resume"
	@echo "make first         train on Catch (10 minutes on a CPU) and write experiments/first/report.html. Repeat the command to resume"
	@echo "make test          run the tests of all parts, without a GPU, in minutes"
	@echo "make test-slow     test whole runs, kills, leaks, ranks, compilers, heapwatch and ONNX files"
	@echo "make gpu           run the tests that need a CUDA device"
	@echo "make bench         measure speed and memory, compared with limits and installed peers"
	@echo "make bench-peers   install the peers of make bench in separate environments"
	@echo "make install       install the packages of tests, lint and site at once"
	@echo "make lint          run ruff, pyright, import-linter, and the budget and prose checks"
	@echo "make format        format the code and apply ruff's fixes"
	@echo "make doctor        check this machine, and suggest a fix for each problem"
	@echo "make docs          build the documentation in site/, offline"
	@echo "make docs-figures  redraw the figures of README.md and docs/ from their raw data"
	@echo "make clean         remove caches and builds, but not .venv and experiments/"

# An interrupted command may have left a .venv without pip, and an unsupported Python fails later with a longer error.
define VENV
@test -x $(BIN)/python || $(PYTHON) -m venv .venv
@$(BIN)/python -c 'import sys; v = sys.version_info[:2]; \
  v in ((3, 11), (3, 12)) or sys.exit(".venv has Python %d.%d, but 3.11 or 3.12 is required. Run: rm -rf .venv && make PYTHON=python3.12 $(MAKECMDGOALS)" % v)'
@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(BIN)/python -m ensurepip
endef

# Without --no-compile, pip would compile thousands of files that are never imported.
INSTALL := $(BIN)/python -m pip install -q --no-compile -c constraints.txt

$(CORE): pyproject.toml packages/heapwatch/pyproject.toml constraints.txt
	$(VENV)
	@echo "installing Reverie and heapwatch into .venv"
	@$(INSTALL) -e packages/heapwatch -e .
	@touch $@

$(READY): $(CORE) packages/reverie-play/pyproject.toml packages/reverie-export/pyproject.toml
	@echo "installing the tests' packages into .venv"
	@$(INSTALL) -e packages/reverie-play -e 'packages/reverie-export[run]' -e '.[dev]'
	@touch $@

# Two installations at the same time would break each other.
$(SITE_READY): $(CORE) $(if $(filter-out docs,$(MAKECMDGOALS)),$(READY))
	@echo "installing the site's packages into .venv"
	@$(INSTALL) -e '.[docs]'
	@touch $@

# One installation is faster than three. The other targets then reuse it.
install:
	$(VENV)
	@echo "installing Reverie, its packages, and those of tests and site into .venv"
	@$(INSTALL) -e packages/heapwatch -e packages/reverie-play -e 'packages/reverie-export[run]' -e '.[dev,docs]'
	@touch $(CORE) $(READY) $(SITE_READY)

# The bundled agent plays once before training. If that fails, training starts anyway. Repeating the command continues
# the run, and another EXPERIMENT or other ARGS start a new one.
train: $(CORE) $(if $(filter dreamer_ataripong,$(EXPERIMENT)),$(VIDEO))
	$(BIN)/python scripts/for_make.py --resume scripts/train.py experiment=$(EXPERIMENT) $(ARGS)

$(VIDEO): | $(CORE)
	@mkdir -p $(@D)
	-$(BIN)/python scripts/evaluate.py run=pretrained:pong device=cpu episodes=1 max_steps=400 video=$@ && \
	  echo "$@ shows a trained agent. Training takes hours. Its first lines include an estimate."

# An existing run is continued. For a finished run, only the report is written again.
first: $(CORE)
	$(BIN)/python scripts/for_make.py --resume scripts/train.py experiment=dreamer_catch device=cpu run_dir=$(FIRST) $(ARGS)
	$(BIN)/python scripts/plot.py $(FIRST) out=$(FIRST)/report.html

test: $(READY)
	$(BIN)/python -m pytest -m "not gpu and not slow" -n $(WORKERS) --dist worksteal $(ARGS)

# `make -j3 test-slow` runs all three at the same time.
test-slow: test-runs test-heapwatch test-export

# pytest exits with 5 if ARGS select no test.
test-runs: $(READY)
	$(BIN)/python -m pytest -m "not gpu and slow" -n $(WORKERS) --dist worksteal $(ARGS) || [ $$? -eq 5 ]

test-heapwatch: $(READY)
	cd packages/heapwatch && ../../$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS) || [ $$? -eq 5 ]

test-export: $(READY)
	cd packages/reverie-export && ../../$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS) || [ $$? -eq 5 ]

gpu: $(READY)
	$(BIN)/python -m pytest -m gpu $(ARGS)
	cd packages/heapwatch && ../../$(BIN)/python -m pytest -m gpu $(ARGS)

bench: $(READY)
	$(BIN)/python scripts/benchmark.py $(ARGS)

bench-peers: $(PEERS_READY) $(JAX_READY)

# The same versions of torch, numpy and the emulator as ours. The peers choose all others.
$(PEERS_READY): benchmarks/peers/requirements.txt constraints.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	grep -E '^(torch|numpy|gymnasium|ale-py|psutil)==' constraints.txt > $(PEERS)/constraints.txt
	$(PEERS)/bin/python -m pip install -c $(PEERS)/constraints.txt -r benchmarks/peers/requirements.txt
	@touch $@

# The author's code runs without torch, so it has its own environment with JAX.
$(JAX_READY): benchmarks/peers/requirements_jax.txt constraints.txt
	test -x $(JAX)/bin/python || $(PYTHON) -m venv $(JAX)
	grep -E '^(numpy|psutil)==' constraints.txt > $(JAX)/constraints.txt
	$(JAX)/bin/python -m pip install -c $(JAX)/constraints.txt -r benchmarks/peers/requirements_jax.txt
	@touch $@

lint: $(READY) $(SITE_READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_budget.py
	$(BIN)/python scripts/check_prose.py

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

doctor: $(CORE)
	$(BIN)/python scripts/doctor.py

docs: $(SITE_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-figures: $(CORE)
	$(BIN)/python scripts/make_figures.py $(ARGS)
	$(BIN)/python -m benchmarks.atari100k_page
	$(BIN)/python -m benchmarks.dmc_page

clean:
	rm -rf build dist site reverie.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find src configs scripts tests -name __pycache__ -prune -exec rm -rf {} +
