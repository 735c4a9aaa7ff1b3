# A fresh machine needs Python 3.10+ and make. `make help` lists what there is.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq
# One thread per process: small tensors gain nothing from more, and two test processes run side by side.
TEST := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 $(BIN)/python -m pytest
WORKERS ?= 2
# The tests begin hundreds of processes; without bytecode each of them compiles finitune anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo systems test test-slow test-bare test-oldest test-gpu test-programs programs strangers check format lint types layers bench-check bench-diagnose bench-logs bench-log-speed bench-scan bench-scripts bench-overhead bench-detect bench-heal bench-heal-systems bench-train bench-budget conformance fields build clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

demo: $(VENV)/.demo ## the Yi incident, broken, caught, proved and cured, on this machine
	$(BIN)/finitune demo yi

# Environments of the examples: a story is told in the first one that has what it needs.
SYSTEMS := $(VENV)/.deepspeed .venv-deepspeed-0.18/.made .venv-ludwig/.made

systems: $(SYSTEMS) ## the founding systems, each broken, caught, explained and cured; one table
	$(BIN)/python -m finitune.demo.systems

test: $(VENV)/.dev ## all tests except the slow ones
	$(TEST) -n $(WORKERS) --durations 20 -m "not slow and not programs"

# One after the other: ranks of several tests that wait for each other on the same cores take many times as long.
test-slow: $(VENV)/.dev $(SYSTEMS) $(VENV)/.conformance ## the slow tests, in real DeepSpeed, Lightning and Ludwig
	$(TEST) --timeout 900 --durations 20 -m "slow and not story"

test-bare: .venv-bare/.made ## the tests of the part that works without torch, in an environment that has none
	OMP_NUM_THREADS=1 .venv-bare/bin/python -m pytest -n $(WORKERS) -m "not slow and not programs and not hypothesis"

test-oldest: .venv-oldest/.made ## the fast tests with the oldest torch that pyproject.toml promises (several GB)
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 .venv-oldest/bin/python -m pytest -n $(WORKERS) \
		-m "not slow and not programs"

test-gpu: $(VENV)/.dev ## what a CPU cannot show, on a GPU: reads, bytes, bit-identity, graphs, programs
	$(BIN)/pytest tests/gpu

test-programs: $(VENV)/.dev $(VENV)/.conformance ## programs as strangers write them, healthy, sick and crashing, each alone and watched
	$(TEST) -n $(WORKERS) -m programs tests/programs

programs: $(VENV)/.dev $(VENV)/.conformance ## the same as one table: FOLDER=another folder with programs and their truth.yaml
	$(BIN)/python tests/programs/table.py $(FOLDER) --jobs $(WORKERS)

strangers: $(VENV)/.dev $(VENV)/.conformance .venv-ludwig/.made ## public programs that come as packages, healthy and broken, in environments of their own: ARGS="--only trl_sft"
	$(BIN)/python benchmarks/strangers.py $(ARGS)

check: format lint types layers test ## what CI runs: format, lint, types, layers, tests

format: $(VENV)/.dev ## is everything formatted? (`.venv/bin/ruff format` does it)
	$(BIN)/ruff format --check .

lint: $(VENV)/.dev ## ruff
	$(BIN)/ruff check .

types: $(VENV)/.dev ## pyright, strict for the part that works without torch
	$(BIN)/pyright

layers: $(VENV)/.dev ## import-linter: imports run downward only, torch only where it may be
	$(BIN)/lint-imports --no-cache

bench-check: $(VENV)/.demo ## public incidents, healthy configurations and whole projects before a run: FILE=other.jsonl FOLDER=of/projects
	$(BIN)/python benchmarks/incidents_check.py $(FILE)
	$(BIN)/python benchmarks/projects_check.py $(FOLDER)

# Where a source distribution cannot be downloaded the line for it says so, and the rest is read.
bench-scripts: $(VENV)/.demo ## every Python file that knows torch, of the installed packages and of source distributions, read as check reads it: FOLDER=another
	@mkdir -p .cache/sources
	@[ -n "$(FOLDER)" ] || for name in transformers trl peft accelerate; do \
		ls .cache/sources/$$name-*.tar.gz >/dev/null 2>&1 || $(BIN)/python -m pip --disable-pip-version-check download -qq \
			--no-binary :all: --no-deps --dest .cache/sources $$name || echo "$$name: not downloaded"; done
	$(BIN)/python benchmarks/read_scripts.py $(or $(FOLDER),--sources .cache/sources)

bench-scan: $(VENV)/.demo ## how fast weights, embedding rows and tokens are read, in how much memory
	$(BIN)/python benchmarks/scan.py

bench-diagnose: $(VENV)/.demo ## the cause of public incidents, from what was told: FILE=benchmarks/incidents-dev.jsonl
	$(BIN)/python benchmarks/incidents_diagnose.py $(FILE)

bench-logs: $(VENV)/.deepspeed $(VENV)/.conformance .venv-ludwig/.made ## the cause of broken runs from their logs, and the verdict on healthy ones (minutes, once)
	$(BIN)/python benchmarks/logs_diagnose.py

bench-log-speed: $(VENV)/.demo ## how fast logs are read
	$(BIN)/python benchmarks/log_speed.py

# The row of Unsloth is run where .venv-unsloth is (2 GB); where it is not, the table says so.
conformance: $(VENV)/.deepspeed $(VENV)/.conformance .venv-ludwig/.made ## every integration against the eight faults: integration x property
	$(BIN)/python benchmarks/conformance.py

bench-overhead: $(VENV)/.demo ## what the guard costs, against no guard and against its peers
	$(BIN)/python benchmarks/overhead.py

bench-detect: $(VENV)/.demo ## detectors head to head: false alarms on healthy trainings, faults seen (10 minutes): ARGS="--quick"
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/detect.py $(ARGS)

bench-heal: $(VENV)/.demo ## broken runs of fresh seeds: never faulted, unguarded, guarded, healed, changed by chance; healthy ones untouched
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/heal.py $(SEEDS)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/heal_healthy.py

bench-heal-systems: $(VENV)/.deepspeed $(VENV)/.conformance ## which remedies act in HF Trainer, TRL, Lightning, DDP, DeepSpeed: one broken run for each (10 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/heal_systems.py $(ARGS)

bench-train: $(VENV)/.deepspeed $(VENV)/.dev ## finitune train beside a plain TRL script: full, LoRA, QLoRA, DDP, FSDP2, ZeRO-2; killed and resumed (15 minutes): ARGS="51,52 full"
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/train_parity.py $(ARGS)

bench-budget: $(VENV)/.demo ## what the guard adds to a step on a GPU, beside its budget: reads, copies, collectives, kernels, bytes
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.budget

# Only the files of the packages are read, so none of their dependencies is installed; DeepSpeed builds nothing.
fields: $(VENV)/.dev ## the keys that configuration formats know, brought up to the newest releases
	rm -rf build/fields
	DS_BUILD_OPS=0 $(PIP) --target build/fields --no-deps --no-compile --ignore-requires-python --no-build-isolation \
		transformers trl accelerate deepspeed llamafactory axolotl ludwig
	$(BIN)/python scripts/fields.py build/fields

build: $(VENV)/.dev ## the wheel and the source archive, in dist/
	$(BIN)/python -m build

clean: ## remove the environment and everything made here
	rm -rf $(VENV) .venv-* build dist runs .cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: installed again only when a dependency changed. The package itself is installed in place.
$(VENV)/.demo: $(VENV)/.created pyproject.toml constraints.txt
	@echo "installing finitune with its dependencies into $(VENV) (minutes on the first run)"
	$(PIP) --editable '.[hf,report]' --constraint constraints.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.created pyproject.toml constraints.txt
	@echo "installing finitune with its dependencies and tools into $(VENV) (minutes on the first run)"
	$(PIP) --editable '.[dev]' --constraint constraints.txt
	@touch $(VENV)/.demo $@

# DeepSpeed is built here, without its compiled operators, against the torch that is installed.
$(VENV)/.conformance: $(VENV)/.demo
	@echo "installing Lightning, Keras, TensorBoard and MLflow into $(VENV)"
	$(PIP) lightning pytorch-lightning keras tensorboard mlflow-skinny --constraint constraints.txt
	@touch $@

$(VENV)/.deepspeed: $(VENV)/.demo
	@echo "installing DeepSpeed into $(VENV)"
	$(PIP) setuptools wheel --constraint constraints.txt
	DS_BUILD_OPS=0 $(PIP) --no-build-isolation deepspeed==0.19.8 --constraint constraints.txt
	@touch $@

# An environment layered over $(VENV): all that is there, and before it what is installed here.
.venv-deepspeed-0.18/.made: $(VENV)/.deepspeed
	@echo "making .venv-deepspeed-0.18, $(VENV) with another DeepSpeed"
	$(BIN)/python -m venv --clear --without-pip $(@D)
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		> $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth
	DS_BUILD_OPS=0 $(BIN)/python -m pip --python $(@D)/bin/python --disable-pip-version-check install -qq \
		--no-build-isolation --no-deps deepspeed==0.18.9
	@touch $@

# Ludwig names a bitsandbytes and a rich that are too old for transformers and for finitune, so these come after it.
.venv-ludwig/.made: $(VENV)/.demo
	@echo "making .venv-ludwig, $(VENV) with Ludwig (minutes on the first run)"
	$(BIN)/python -m venv --clear --without-pip $(@D)
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		> $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth
	$(BIN)/python -m pip --python $(@D)/bin/python --disable-pip-version-check install -qq ludwig==0.11.0 \
		--constraint constraints.txt
	$(BIN)/python -m pip --python $(@D)/bin/python --disable-pip-version-check install -qq --no-deps \
		bitsandbytes==0.50.2 'rich>=13.7'
	@touch $@

# Unsloth names its own transformers, TRL and datasets; a torchvision that does not fit torch ends its import.
.venv-unsloth/.made: $(VENV)/.demo
	@echo "making .venv-unsloth, $(VENV) with Unsloth (2 GB, minutes on the first run)"
	$(BIN)/python -m venv --clear --without-pip $(@D)
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		> $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth
	$(BIN)/python -m pip --python $(@D)/bin/python --disable-pip-version-check install -qq \
		unsloth==2026.10.7 unsloth_zoo==2026.10.7 tensorboard --constraint constraints.txt
	$(BIN)/python -m pip --python $(@D)/bin/python --disable-pip-version-check uninstall -qq --yes torchvision
	@touch $@

# The core and its tools, and nothing that could bring torch.
.venv-bare/.made: $(VENV)/.created pyproject.toml constraints.txt
	@echo "making .venv-bare, finitune without torch"
	$(PYTHON) -m venv --clear --without-pip $(@D)
	$(BIN)/python -m pip --python $(@D)/bin/python --disable-pip-version-check install -qq --editable '.[report]' \
		hypothesis jsonschema pytest pytest-timeout pytest-xdist --constraint constraints.txt
	@touch $@

.venv-oldest/.made: $(VENV)/.created pyproject.toml constraints-oldest.txt
	@echo "making .venv-oldest, finitune with the oldest torch that it takes (several GB, minutes)"
	$(PYTHON) -m venv --clear --without-pip $(@D)
	$(BIN)/python -m pip --python $(@D)/bin/python --disable-pip-version-check install -qq --editable '.[hf,report]' \
		hypothesis jsonschema pytest pytest-timeout pytest-xdist setuptools --constraint constraints-oldest.txt
	@touch $@

# Some systems ship Python without the means to put pip into an environment; then the pip or the virtualenv
# of the system does it, and where there is neither we say what to install.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 10) or sys.exit("finitune needs Python 3.10 or newer, but $(PYTHON) is %d.%d; try: make PYTHON=python3.12 ..." % v[:2])'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 \
	|| $(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 \
	|| { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install -qq pip; } 2>/dev/null \
	|| $(PYTHON) -m virtualenv --clear $(VENV) 2>/dev/null \
	|| { rm -rf $(VENV); echo "$(PYTHON) cannot make an environment: install the venv module (Debian, Ubuntu: apt install python3-venv) or virtualenv" >&2; exit 1; }
	@touch $@
