# Everything a developer or a CI machine types. The first target that needs it makes the virtual
# environment; the stamp files in it make every later run quick.

PYTHON ?= python3
VENV   ?= .venv
CACHE  ?= .cache
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check
PYTEST ?= $(BIN)/python -m pytest
ARGS   ?=
JOBS   ?= 2

.DEFAULT_GOAL := help
.NOTPARALLEL:
.SUFFIXES:
.DELETE_ON_ERROR:

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-zA-Z0-9_%-]*\):.*## /\1|/p' $(MAKEFILE_LIST) \
	  | while IFS='|' read -r target text; do printf '  make %-15s %s\n' "$$target" "$$text"; done

.PHONY: setup
setup: $(VENV)/.dev ## make the virtual environment with all that development needs

.PHONY: demo
demo: $(VENV)/.demo ## drain 300 pictures with four runners, one of which is killed
	@$(BIN)/python tools/sample_photos.py $(CACHE)/photos
	@$(BIN)/brokerwq demo --photos $(CACHE)/photos --out $(CACHE)/demo $(ARGS)

.PHONY: test
test: $(VENV)/.dev ## the whole suite, servers included, then the contract against the wheel
	@$(BIN)/python tools/prepare_servers.py
	$(PYTEST) --ignore=tests/chaos --numprocesses $(JOBS) --dist loadfile \
	  --no-loadscope-reorder $(ARGS)
	@$(MAKE) --no-print-directory test-wheel

.PHONY: test-servers
test-servers: $(VENV)/.dev ## of these only what needs a server, which the tests start
	@$(BIN)/python tools/prepare_servers.py
	$(PYTEST) --ignore=tests/chaos -m server --numprocesses $(JOBS) --dist loadfile \
	  --no-loadscope-reorder $(ARGS)

.PHONY: test-fast
test-fast: $(VENV)/.dev ## the tests that are not slow and need no server
	$(PYTEST) -m "not slow and not server" --numprocesses auto $(ARGS)

.PHONY: test-rabbitmq-4
test-rabbitmq-4: $(VENV)/.dev ## the RabbitMQ tests on a 4.3 node
	@BROKERWQ_TEST_RABBITMQ=4.3 $(BIN)/python tools/prepare_servers.py
	BROKERWQ_TEST_RABBITMQ=4.3 $(PYTEST) tests/contract/test_rabbitmq.py tests/adapters \
	  -m server -k "4.3 or Rabbit43" $(ARGS)

.PHONY: test-wheel
test-wheel: $(VENV)/.dev ## the contract tests against the built wheel, in another folder
	PYTHON=$(BIN)/python tools/test_wheel.sh $(CACHE)

.PHONY: check
check: $(VENV)/.dev ## format, lint, types, layers, module sizes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --cache-dir $(CACHE)/import-linter --no-logo
	$(BIN)/python tools/check_sources.py
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

.PHONY: fmt
fmt: $(VENV)/.dev ## format, and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-%: $(VENV)/.dev ## run benchmarks/NAME.py, e.g. make bench-sqlite
	$(BIN)/python benchmarks/$*.py $(ARGS)

.PHONY: bench-rabbitmq
bench-rabbitmq: $(VENV)/.dev ## benchmarks/rabbitmq.py, beside four peers
	$(PIP) install --group peers
	$(BIN)/python benchmarks/rabbitmq.py $(ARGS)

chaos-%: $(VENV)/.dev ## run the long campaign of tests/chaos/test_NAME.py
	CAMPAIGN=full $(PYTEST) -s tests/chaos/test_$*.py $(ARGS)

.PHONY: clean
clean: ## remove what the targets made
	rm -rf $(VENV) $(CACHE) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.venv:
	tools/make_venv.sh "$(PYTHON)" "$(VENV)"
	$(PIP) install --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.venv
	$(PIP) install --editable ".[demo]"
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.venv
	$(PIP) install --editable . --group dev
	@touch $@ $(VENV)/.demo
