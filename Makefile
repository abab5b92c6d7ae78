# Two commands matter: `make app` serves the dashboard, `make test` checks everything.
# PIP_ARGS reaches every pip call, e.g. PIP_ARGS="--find-links /path/to/wheels" for a CPU build of torch.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_ARGS ?=
PORT ?= 8501

.PHONY: env app test lint types check browser clean

env: $(VENV)/.env-stamp

$(VENV)/.env-stamp: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt $(PIP_ARGS) --editable .
	@touch $@

$(VENV)/.dev-stamp: $(VENV)/.env-stamp
	$(BIN)/pip install --quiet --constraint constraints.txt $(PIP_ARGS) --editable ".[dev]"
	@touch $@

app: env
	$(BIN)/streamlit run app --server.address localhost --server.port $(PORT)

lint: $(VENV)/.dev-stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.dev-stamp
	$(BIN)/mypy

check: lint types

# The browser tests drive the system's Chromium.
browser:
	@command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || \
		{ echo "installing chromium from the system's packages"; apt-get update -qq && apt-get install -y -qq chromium; } || \
		{ echo "no Chromium: install the package 'chromium' and run again" >&2; exit 1; }

test: check browser
	$(BIN)/pytest -n 2 --dist loadfile

clean:
	rm -rf $(VENV) .venv-pfo .venv-pfo.lock build *.egg-info \
		.mypy_cache .ruff_cache .pytest_cache .hypothesis
