# Every target makes the virtual environment that it needs, in .venv. Another place:
# make test VENV=/path. Another Python: make test PYTHON=python3.12.
VENV ?= .venv
PYTHON ?= python3
# Every package is pinned for each Python; a Python without a file gets torch's pair alone.
IN_VENV = $(wildcard $(VENV)/bin/python)
tag = $(shell $(1) -c 'import sys; print("py%d%d" % sys.version_info[:2])' 2> /dev/null)
TAG := $(call tag,$(or $(IN_VENV),$(PYTHON)))
CONSTRAINTS ?= $(or $(wildcard constraints/$(TAG).txt),constraints/torch.txt)
ifeq ($(origin PYTHON)$(if $(IN_VENV),, none),command line)
ifneq ($(call tag,$(PYTHON)),$(TAG))
$(error $(VENV) has another Python than $(PYTHON): make clean, or say VENV=.venv-other)
endif
endif
# Stealing keeps the tests of a module, and what they share, in one process for the most part.
# Two processes more than a small machine's cores: many tests wait for other processes.
PARALLEL = -n 4 --dist worksteal
# Tests start hundreds of interpreters: those would compile the package again each time.
test test-slow test-trackers test-floor: export PYTHONDONTWRITEBYTECODE =
RUN = $(VENV)/bin/python tools/run_distributed_engines.py

help:
	@echo "make quickstart     install, pretrain SimCLR on built-in images, judge it (minutes, no GPU)"
	@echo "make test           install what the tests need, run them all"
	@echo "make test-slow      the long tail as well (two hours)"
	@echo "make test-trackers  runs that wandb, trackio, SwanLab and MLflow follow (minutes)"
	@echo "make test-floor     the tests with the oldest versions that are supported"
	@echo "make bench          what the engine costs a step, and the same losses as other engines"
	@echo "make gpu            on a machine with a GPU: tests, speed, a report in docs/gpu (8 minutes)"
	@echo "make methods-table  train and judge every method (hours; can be resumed)"
	@echo "make schema         write configs/schema.json, with which editors complete YAML"
	@echo "make wheel          build dist/*.whl, the schema inside"
	@echo "make lock           renew constraints/: the newest version of each package"
	@echo "make chaos          kill small runs of all methods a hundred times (minutes)"
	@echo "make clean          remove the environments and build files"

quickstart: $(VENV)/.installed
	@$(RUN) config=quickstart/simclr
	@$(RUN) config=quickstart/simclr +config/benchmark/frozen=shapes
	@echo
	@echo "Next: your own images, a folder of them, no labels needed:"
	@echo "  $(VENV)/bin/sslengine train DIR --method dino --out runs/mine"

test: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest $(PARALLEL)

test-slow: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest $(PARALLEL) -m "slow or not slow"

# Packages of trackers need other versions than the tests' of what both need: an environment of
# their own, with torch's pair alone held.
TRACKERS_VENV ?= .venv-trackers
test-trackers:
	@$(PYTHON) -m venv $(TRACKERS_VENV)
	@$(TRACKERS_VENV)/bin/pip install --quiet --disable-pip-version-check \
	  --constraint constraints/torch.txt --editable '.[trackers]' pytest pytest-timeout pytest-xdist hypothesis
	$(TRACKERS_VENV)/bin/python -m pytest $(PARALLEL) -m slow tests/monitor/test_real_trackers.py

test-floor:
	$(MAKE) test VENV=.venv-floor CONSTRAINTS=constraints/floor.txt

bench: $(VENV)/.installed-test
	$(VENV)/bin/pip install --quiet --constraint $(CONSTRAINTS) --editable '.[bench]'
	$(VENV)/bin/python tools/perf_measurement/bench_engine.py
	$(VENV)/bin/python -m pytest tests/peers

# A machine with a GPU may have no network, and nothing but Python, pip, torch and torchvision. `make
# gpu-wheels` fills WHEELS where there is a network: make gpu-wheels GPU_PYTHON=3.12 HAS="scipy timm"
# for a machine with Python 3.12 that has these two (any of them is left alone where it is installed).
WHEELS ?= wheels
GPU_VENV ?= .venv-gpu
GPU_PYTHON ?= 3.12
HAS ?=
PLATFORMS = $(foreach libc,2_28 2_27 2_17,--platform manylinux_$(libc)_x86_64) --platform manylinux2014_x86_64
# The same for every Python. A test compares both lists with what the engine and its tests ask for.
PURE = anyio antlr4-python3-runtime==4.9.3 classy-vision click cloudpickle execnet fvcore h11 \
  httpcore2 httpx2 huggingface-hub hydra-core idna iniconfig iopath joblib lightly markdown-it-py \
  mdurl narwhals omegaconf==2.3.1 packaging pluggy portalocker pygments pytest pytest-timeout pytest-xdist \
  rich sortedcontainers submitit tabulate termcolor threadpoolctl timm tqdm truststore yacs
COMPILED = hf-xet hypothesis llvmlite numba pyyaml safetensors scikit-learn scipy simplejpeg
gpu:
	$(PYTHON) tools/gpu_packages.py $(WHEELS) $(GPU_VENV)
	PYTHONPATH=$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH} $(GPU_VENV)/bin/python tools/gpu_report.py $(GPU_REPORT)

gpu-wheels: $(VENV)/bin/python
	$(VENV)/bin/python -m pip wheel --quiet --no-deps --wheel-dir $(WHEELS) $(filter-out $(HAS),$(PURE))
	$(VENV)/bin/python -m pip download --quiet --no-deps --only-binary=:all: --implementation cp \
	  --python-version $(GPU_PYTHON) $(PLATFORMS) --dest $(WHEELS) $(filter-out $(HAS),$(COMPILED))

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; assert (3, 10) <= sys.version_info[:2]' 2> /dev/null || \
	  { echo "$(PYTHON) is not Python 3.10 or newer: make PYTHON=python3.x ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "On Debian: apt install python3-venv"; exit 1; }

$(VENV)/.installed: setup.py $(CONSTRAINTS) | $(VENV)/bin/python
	@echo "Installing PyTorch and sslengine into $(VENV): about 6 GB, a few minutes ..."
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check \
	  --constraint $(CONSTRAINTS) --editable .
	@$(VENV)/bin/python tools/config_schema.py
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "Installing what the tests need ..."
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check \
	  --constraint $(CONSTRAINTS) --editable '.[test]'
	@touch $@

schema: $(VENV)/.installed
	$(VENV)/bin/python tools/config_schema.py

# The schema is made by the package itself, with its dependencies: no isolated build can.
wheel: schema
	$(VENV)/bin/pip wheel --quiet --no-deps --wheel-dir dist .

methods-table: $(VENV)/.installed
	$(VENV)/bin/python tools/methods_table.py

chaos: $(VENV)/.installed
	$(VENV)/bin/python tools/chaos.py --series --kills 100

lock:
	$(PYTHON) .ci/lock.py

clean:
	rm -rf .venv .venv-floor .venv-trackers build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

.PHONY: help quickstart test test-slow test-trackers test-floor bench gpu gpu-wheels schema wheel methods-table chaos lock clean
