# `make` lists the verbs. They install into .venv and need nothing but make, Python 3.11-3.13 and a C++ compiler;
# as root on Debian the missing packages are installed too (.ci/setup).
#
#   PYTHON=python3.12   another interpreter          EXTRAS=train,ray      other extras
#   JOBS=4              test processes               BENCH=benchmarks/x.py   another benchmark
#   UV_TORCH_BACKEND=cpu  torch without CUDA libraries (several GB) on a Linux machine that has no GPU

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Without bytecode every process that imports torch would compile it anew, for 4 s.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
EXTRAS ?= train,fast,s3,html,suffix-array
# One more than the cores of a small machine: tests wait for processes, schedulers and servers half of the time.
JOBS ?= 3
BENCH ?= benchmarks/performance.py
BIN := .venv/bin
# Setup is done when this file exists: its name changes with whatever the installation depends on.
STAMP := .venv/.done-$(shell { cat pyproject.toml constraints.txt .ci/setup; $(PYTHON) -VV; \
	echo "$(EXTRAS) $(CURDIR)"; } 2>/dev/null | sha256sum | cut -c1-16)

.PHONY: help setup lint warm plain test soak bench gpu docs site demo wheel

help:
	@sed -nE 's/^([a-z]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 10

setup: $(STAMP) ## create .venv: corpuskit, torch, gigatoken, development tools, in the versions of constraints.txt

lint: $(STAMP) ## formatting, lint rules, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(STAMP) ## lint, ratios to peers and floors, every test; the kernels also as plain Python
	@$(MAKE) -j3 --output-sync=target lint warm plain
	$(BIN)/python benchmarks/performance.py --check
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

warm: $(STAMP)
	$(BIN)/corpuskit warmup

plain: $(STAMP)
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -q -m "not slow and not real" tests/kernels

soak: $(STAMP) ## 2,000 random schedules of faults: every byte as without them (about 15 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults --num 2000 --jobs $(JOBS)
	$(BIN)/python -m tests.faults.loader_files --num 1000
	$(BIN)/python -m tests.faults.checkpoints --num 100
	$(BIN)/python -m tests.composing --num 2000

bench: $(STAMP) ## whole commands beside peers and floors: the table of docs/performance.md (4 minutes)
	$(BIN)/python $(BENCH)

# Nothing is installed: corpuskit runs from here, in any Python with what benchmarks/gpu.py names.
gpu: ## what only a GPU can show, in 10 minutes; DRY=1 on CPU, OUT=folder, WHEELS=folder; installs nothing
	@python=$(PYTHON); if [ "$(origin PYTHON)" = file ] && [ -x $(BIN)/python ]; then python=$(BIN)/python; fi; \
	"$$python" benchmarks/gpu.py --out "$(or $(OUT),build/gpu)" $(if $(DRY),--dry) $(if $(WHEELS),--wheels "$(WHEELS)")

docs: $(STAMP) ## write the generated pages and tables anew
	$(BIN)/python docs/generate.py

site: $(STAMP) ## build the documentation as a website: build/site/html/index.html
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt --group docs
	rm -rf build/site
	$(BIN)/python docs/website.py build/site
	cd build/site && ../../$(BIN)/zensical build --strict

wheel: $(STAMP) ## dist/: a wheel with compiled kernels for this Python and x86-64-v3 (or aarch64)
	CORPUSKIT_KERNELS=1 $(BIN)/python -m hatchling build -t wheel -d dist

demo: $(STAMP) ## raw documents to training steps, on sample_data/
	$(BIN)/corpuskit run pipelines/quickstart.yaml
	$(BIN)/corpuskit train pipelines/train_quickstart.yaml

$(STAMP):
	@.ci/setup "$(PYTHON)" "$(EXTRAS)" "$@"
