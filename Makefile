# Two commands for a start: `make demo` and `make test`. Everything runs in .venv, made and renewed by itself.

VENV := .venv
BIN := $(VENV)/bin
SOURCES := gateway replica tests
ENGINE ?= sim
PYTEST ?=

export VENV PYTHON

.DEFAULT_GOAL := help
.PHONY: help demo test test-vllm check format bench docs clean

help: ## this page
	@echo "LoRA gateway: one endpoint in front of many vLLM replicas that share one directory of adapters."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "The first one makes .venv (Python 3.11 or newer, a minute). Then also: $(BIN)/lora-gateway --help"

demo: $(VENV)/.installed ## a whole fleet on this machine, no GPU (ENGINE=vllm: real vLLM on the CPU; ONCE=1: show and end)
ifeq ($(ENGINE),vllm)
	@engine=$$(scripts/vllm-venv | tail -n 1) && \
	LORA_GATEWAY_VLLM_PYTHON=$$engine/bin/python $(BIN)/lora-gateway demo --engine vllm $(if $(ONCE),--once)
else
	@$(BIN)/lora-gateway demo --engine $(ENGINE) $(if $(ONCE),--once)
endif

test: $(VENV)/.installed ## every test that needs no engine (PYTEST="-k name" narrows it)
	@$(BIN)/python -m pytest -m "not vllm" -n 2 $(PYTEST)

test-vllm: $(VENV)/.installed ## the contract and end-to-end tests on real vLLM replicas (makes their environment, 2.5 GB)
	@scripts/test-vllm $(PYTEST)

check: $(VENV)/.installed ## format, lint, types
	@failed=0; \
	$(BIN)/ruff format --check $(SOURCES) || failed=1; \
	$(BIN)/ruff check $(SOURCES) || failed=1; \
	$(BIN)/mypy || failed=1; \
	exit $$failed

format: $(VENV)/.installed ## put the source into the form that `check` wants
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench: $(VENV)/.installed ## what the gateway costs, beside other proxies (BENCH="..." goes to the benchmark)
	@$(BIN)/python -m tests.bench $(BENCH)

docs: $(VENV)/.installed ## write docs/configuration.md anew from the table of settings
	@$(BIN)/python -m gateway.settings_docs docs/configuration.md

clean: ## remove what was made here, except the engine's environment (.venv-*)
	rm -rf $(VENV) .demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

$(VENV)/.installed: pyproject.toml constraints.txt
	@scripts/venv $(VENV)
