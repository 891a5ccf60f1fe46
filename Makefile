.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format docs reference test-engine test-helm bench-engine engine-matrix screenshots property lock clean

# Python cannot find itself, and so makes no virtual environment, where there is no PATH at all.
ifndef PATH
export PATH := /usr/local/bin:/usr/bin:/bin
endif

BIN := .venv/bin
ARGS ?=

help: ## Show what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: .venv/.installed ## Make .venv from requirements-dev.lock (PYTHON=... names the interpreter)

.venv/.installed: requirements-dev.lock pyproject.toml scripts/setup.sh
	@PYTHON="$(PYTHON)" bash scripts/setup.sh

demo: setup ## Play an agent against simulated engines, with reuse off and on (ARGS="--serve" stays up)
	@$(BIN)/boomerang demo $(ARGS)

test: setup ## Run every test that needs no real engine (ARGS go to pytest)
	@bash scripts/programs.sh
	$(BIN)/python -m pytest -n auto --maxprocesses 4 $(ARGS)
	cd deploy/vllm-plugin && ../../$(BIN)/python -m pytest -q

lint: setup ## Check style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Put code into form, and fix what can be fixed safely
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-engine: setup ## Run the tests against a real vLLM on the CPU (installs it once, outside the clone)
	bash deploy/engine-cpu/install.sh
	$(BIN)/python -m pytest tests/engine $(ARGS)

bench-engine: setup ## Time to first token on a real vLLM on the CPU, with reuse off and on
	bash deploy/engine-cpu/install.sh
	$(BIN)/python -m bench.real_ttft $(ARGS)

test-helm: setup ## Render the Helm chart, and validate all manifests (installs what does it once, outside the clone)
	bash deploy/helm/install.sh
	$(BIN)/python -m pytest tests/manifests $(ARGS)

engine-matrix: setup ## A short form of those tests on several vLLM versions; writes docs/compatibility.md
	$(BIN)/python deploy/engine-cpu/matrix.py $(ARGS)

screenshots: setup ## Take the pictures of docs/page.md anew (needs a Chromium)
	$(BIN)/python -m tests.page.screenshots $(ARGS)

docs: setup ## Build the documentation site in build/site
	$(BIN)/python -m scripts.site
	$(BIN)/zensical build --clean --strict

reference: setup ## Write docs/reference anew from the code
	$(BIN)/python -m scripts.reference

property: setup ## The property test at full length
	BOOMERANG_TURNS=20000 $(BIN)/python -m pytest -k property $(ARGS)

.PHONY: bench-loops bench-instructions bench-startup bench-streams

bench-loops: setup ## Time the core loops of a turn, each alone (ARGS go to pytest-benchmark)
	$(BIN)/python -m pytest bench/test_loops.py --benchmark-columns=min,median,stddev,ops $(ARGS)

bench-instructions: setup ## Count their instructions (valgrind), and judge them by bench/instructions.json
	$(BIN)/python -m bench.instructions $(ARGS)

bench-startup: setup ## Measure time to ready and idle memory
	$(BIN)/python -m bench.startup $(ARGS)

bench-streams: setup ## Measure memory with up to 2,000 streams at once
	$(BIN)/python -m bench.streams $(ARGS)

lock: ## Pin all dependencies anew (ARGS="--upgrade" takes newer ones)
	@bash scripts/lock.sh $(ARGS)

clean: ## Remove what was made here
	rm -rf .venv .venv-lock .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find router tests bench scripts -name __pycache__ -type d -prune -exec rm -rf {} +
