# `make run` and `make test` need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WITH_GAPS := tests/test_reading.py tests/queue tests/handlers tests/analyze tests/derived tests/store tests/collect tests/runtime \
	tests/e2e/test_acks.py tests/serve/test_real.py tests/client tests/fingerprints tests/windows tests/rollups tests/joins \
	tests/cep tests/recognize tests/test_memory_log.py tests/serve/test_stream.py tests/serve/test_transports.py \
	tests/serve/test_schedules.py tests/serve/test_sessions.py tests/serve/test_stream_reader.py tests/serve/test_sse.py \
	tests/serve/test_stream_pages.py tests/serve/query/test_query.py \
	tests/serve/query/test_stream_relation.py tests/serve/query/test_live.py

# The tests in WITH_GAPS that read stored offsets and need neither Spark nor a browser: about a minute on two cores.
WITH_GAPS_QUICK := tests/test_reading.py tests/queue/test_contract.py tests/queue/test_embedded.py \
	tests/queue/test_holes.py tests/queue/test_recall.py tests/queue/test_upcast.py tests/handlers/test_decimals.py \
	tests/handlers/test_determinism.py tests/handlers/test_gaps.py tests/handlers/test_view_rows.py tests/runtime/test_acks.py \
	tests/runtime/test_ack_work.py tests/runtime/test_events.py tests/runtime/test_states.py tests/runtime/test_status.py \
	tests/derived/test_changes.py tests/derived/test_exact.py tests/rollups/test_files.py tests/joins/test_view.py \
	tests/collect/test_end_to_end.py tests/collect/test_stream_clock.py tests/serve/test_real.py tests/client/test_gateway.py \
	tests/client/test_trimmed.py tests/test_memory_log.py tests/serve/test_stream.py tests/serve/query/test_stream_relation.py \
	tests/serve/query/test_query.py tests/serve/test_schedules.py tests/serve/test_sessions.py tests/serve/test_stream_reader.py \
	tests/serve/test_sse.py tests/serve/test_stream_pages.py

.PHONY: setup run test gaps gaps-quick lint types check soak bench clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Penstock needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=/path/to/python3.11")'
	@echo "setting up $(VENV): about a minute, most of it downloading Spark"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

run: setup
	@$(BIN)/python examples/rsvps.py $(ARGS)

test: setup
	@$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup
	@$(BIN)/mypy

check: lint types test

gaps: setup
	@PENSTOCK_TEST_GAPS=1 $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(WITH_GAPS)

gaps-quick: setup
	@PENSTOCK_TEST_GAPS=1 $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder \
		-m "not spark and not browser and not soak" $(WITH_GAPS_QUICK)

soak: setup
	@$(BIN)/python -m pytest -m soak --timeout 7200 -s

bench: setup
	@$(BIN)/python -m bench

clean:
	rm -rf $(VENV) build *.egg-info
