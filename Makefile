# Needs Python 3.10 or newer, and make. Everything is installed into .venv; nothing outside this folder is changed.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
LIGHT  := $(VENV)/.demo

NATIVE := $(shell find native -name tests -prune -o \( -name '*.cc' -o -name '*.h' -o -name CMakeLists.txt \) -print)

# A bare `torch` would bring the newest release with its CUDA packages; constraints.txt names the one that is tested.
PIP    := $(BIN)/python -m pip
# More options of pip install.
INSTALL ?=

define CHECK_PYTHON
$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Grace needs Python 3.10 or newer; $(PYTHON) is Python " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12")' && \
{ $(PYTHON) -c 'import ensurepip, venv' || { echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }; }
endef

DEMO   := none,bf16,fp16,qsgd:bits=4,signsgd,efsignsgd,topk:ratio=0.01,randomk:ratio=0.01,threshold:v=3,relative=true,powersgd:rank=2

# What make gpu-bench measures the codecs of; and processes of make gpu-test, which share the GPU (half a GB of its memory each):
# most of the time goes into compiling kernels.
CODECS := qsgd:bits=4,qsgd:bits=8,fp8,u8bit,natural,efsignsgd,onebit,signsgd,terngrad,bf16,randomk,topk,threshold:v=2,drive,powersgd
GPU_JOBS ?= 0

# Damaged payloads for each decoder.
FUZZ   ?= 10000000

# Processes of the test runner, one more than there are cores (tests/conftest.py): each keeps a group of tests to itself, and the
# longest groups begin (tests/tiers.py).
SPREAD := -n auto --maxprocesses 4 --dist loadgroup --no-loadscope-reorder
PYTEST := $(BIN)/python -m pytest $(SPREAD) -m "not night"
TYPES  := $(BIN)/mypy && $(BIN)/lint-imports
# What each test took, dearest first: make night RECORD=FILE
RECORD ?= build/seconds.tsv
# In a line that has MAKE itself, make -n would run all of it.
AGAIN  := $(MAKE)

# Tests, while types and imports are checked; what these say comes at the end. What runs in the background does not hear of
# Ctrl-C: the trap ends it.
define TEST
@mkdir -p build; $(BIN)/mypy > build/types.log 2>&1 & types=$$!; \
$(BIN)/lint-imports > build/imports.log 2>&1 & imports=$$!; \
trap 'kill $$types $$imports 2> /dev/null; exit 130' INT TERM; \
$(PYTEST) $(1); tests=$$?; \
wait $$types; types=$$?; wait $$imports; imports=$$?; \
cat build/types.log build/imports.log; exit $$((tests | types | imports))
endef

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test triton doors laws bench-test gate night night-tests night-fuzz fuzz gpu-test gpu-bench native-test address-test bench-codecs lint style types docs site goldens figures wheels pair clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## .venv with Grace and all that its tests need; redone when pyproject.toml, constraints.txt or native/ change

# The marker is written last: a set-up that was interrupted is done again.
$(STAMP): pyproject.toml constraints.txt $(NATIVE)
	@$(CHECK_PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet $(INSTALL) -c constraints.txt -e '.[dev]'
	@touch $@

# The demo needs neither toolkits nor test tools: a fraction of what setup installs. Where setup has been, nothing more is needed.
$(LIGHT): pyproject.toml constraints.txt $(NATIVE)
	@$(CHECK_PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet $(INSTALL) -c constraints.txt -e '.[bench]'
	@touch $@

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(LIGHT)) ## ten methods train a network with four workers each; table and figures in demo/
	$(BIN)/grace compare --task digits_wide --methods "$(DEMO)" --workers 4 --out demo

# The tests start some hundred processes: where PYTHONDONTWRITEBYTECODE is set, each would compile Grace's sources again, and
# pytest all tests in each of its processes.
quick test triton doors laws bench-test gate night night-tests: export PYTHONDONTWRITEBYTECODE =

quick: style ## while one works: style, types, units and golden bytes
	$(call TEST,-q --tier test tests/unit tests/golden)

test: style ## before a commit: style, types, and every test that needs neither Triton's interpreter nor many processes
	$(BIN)/python -m compileall -q -j 0 src tests
	$(call TEST,--tier test)

triton: setup ## Triton's kernels and what is computed with them, in Triton's interpreter
	$(PYTEST) --tier triton

doors: setup ## adapters and launchers in real processes: DDP, FSDP, Keras, TensorFlow, JAX, MPI, Horovod, elastic, checkpoints
	$(PYTEST) --tier doors

laws: setup ## the laws over compositions and numbers of workers that make test leaves out
	$(PYTEST) --tier laws

bench-test: setup ## the bench, the report in a browser, the site, benchmarks, and what an addition touches
	$(PYTEST) --tier bench-test

# One run of pytest, so that no core waits for the end of a tier; it says at the end what became of each.
gate: style ## what must pass before a merge: test, triton, doors, laws and bench-test at once
	$(BIN)/python -m compileall -q -j 0 src tests
	$(call TEST)

# A part that fails stops no other (-k); make says at the end which did. Tests are given an hour each: Triton's interpreter is
# slow, and a busy machine, too.
night: setup ## every test there is, long ones included, each test's seconds in build/seconds.tsv; sanitizers; fuzzing
	$(BIN)/python -m compileall -q -j 0 src tests
	$(AGAIN) --keep-going lint night-tests native-test address-test night-fuzz

night-tests: setup
	GRACE_TEST_DIGITS=1 GRACE_TEST_RAY=1 $(BIN)/python -m pytest $(SPREAD) --timeout 3600 --seconds $(RECORD)

night-fuzz: setup
	$(BIN)/python -m tests.fuzz --record 30
	$(BIN)/python -m tests.fuzz --only exchange --seconds 5

native-test: setup ## the native kernels under sanitizers, and a short fuzzing of their decoders
	PATH="$(CURDIR)/$(BIN):$$PATH" native/tests/run.sh

address-test: setup ## Python's tests of the native kernels, over kernels under sanitizers (needs GCC)
	PATH="$(CURDIR)/$(BIN):$$PATH" native/tests/python.sh

gpu-test: setup ## what needs a CUDA device; skipped, with the reason, where there is none; GPU_JOBS=16: in minutes
	$(BIN)/python -m pytest -n $(GPU_JOBS) --maxschedchunk 3 -rs tests/gpu

gpu-bench: setup ## what codecs, buckets, steps and a training take on a CUDA device; in timings/gpu (minutes, idle machine)
	mkdir -p timings/gpu
	$(BIN)/grace bench codecs --device cuda --sizes 6.5536M,25M,100M --methods "$(CODECS)" --out timings/gpu
	$(BIN)/python -m benchmarks.overhead --device cuda --json > timings/gpu/buckets.json
	$(BIN)/python -m benchmarks.overhead --device cuda --steps --json > timings/gpu/steps.json
	$(BIN)/grace bench train --device cuda --task digits_wide --methods topk:ratio=0.01,efsignsgd --workers 2 --out timings/gpu/train

bench-codecs: setup ## what codecs take, beside goals, reference kernels and plain torch; in timings/ (six minutes, idle machine)
	$(BIN)/python -m benchmarks.codecs --out timings

fuzz: setup ## every decoder against damaged payloads, for hours; FUZZ=100000 for a short run
	FUZZ=$(FUZZ) PATH="$(CURDIR)/$(BIN):$$PATH" native/tests/fuzz.sh
	$(BIN)/python -m tests.fuzz --payloads $(FUZZ)

lint: style types ## style and types only

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(TYPES)

goldens: setup ## adds the golden bytes of methods that have none
	$(BIN)/python -m tests.golden.make

docs: setup ## writes the generated pages of docs/ anew
	$(BIN)/python docs/generate.py

site: setup ## the documentation as a site, in build/site: open build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

figures: setup ## draws README's picture anew, from docs/concepts/results.md
	$(BIN)/python docs/figures.py

wheels: setup ## a wheel for each platform that this machine can build for, in dist/ (Linux: needs Docker, and qemu for aarch64)
	$(PIP) install --quiet 'cibuildwheel>=3'
	$(BIN)/python -m cibuildwheel --output-dir dist

pair: ## the core tests on another Python and torch: make pair PYTHON=python3.10 TORCH=2.6.0
	PYTHON=$(PYTHON) .ci/pair $(TORCH)

clean: ## removes what make made, .venv included
	rm -rf $(VENV) demo timings dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
