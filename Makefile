# A graph of files keyed by content: `kvtop_lib.keys` writes a key file only when what it stands
# for has changed, and everything measured depends on such keys, never on the sources' file times.

PROFILE ?= reproduce
VENV ?= .venv
ifneq ($(words $(PROFILE)),1)
$(error PROFILE must be one name of params/profiles)
endif
PYTHON ?= python3
EXTRA ?= $(if $(wildcard $(VENV)/.kvtop-gpu-*),gpu,cpu)
OUTPUTS := $(or $(KVTOP_OUTPUTS),outputs)
ifneq ($(words $(VENV) $(OUTPUTS)),2)
$(error VENV and KVTOP_OUTPUTS must name a folder each, without blanks)
endif
RUN := $(OUTPUTS)/runs/$(PROFILE)
NOTE := $(if $(filter reproduce,$(PROFILE)),$(OUTPUTS)/note.html,$(RUN)/note.html)
PY := $(VENV)/bin/python
# containers often forbid byte code; without it every start of Python compiles its imports anew
export PYTHONDONTWRITEBYTECODE :=
# a killed make cannot tell those below it: a step ends when the outermost make has ended
CALLER := $(shell echo $$PPID)
STEP := $(PY) -m kvtop_lib.step --caller $(CALLER) $(PROFILE)
LOCKS := requirements/cpu.lock requirements/no-deps.lock pyproject.toml
READY := $(VENV)/.kvtop-$(EXTRA)-$(shell cat $(LOCKS) | cksum | tr -d ' ')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.SECONDEXPANSION:
.PHONY: help reproduce retry install model keys note test lint lab bench lossless soak train-mtp record clean

help:  ## what can be made
	@echo "make TARGET [PROFILE=$(PROFILE)] [VENV=$(VENV)]"
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

# ---- the run: keys -> deployments -> blocks -> derived results -> analyses -> note ------------

-include $(RUN)/graph.mk   # ARMS, and BLOCKS in the order of measurement; written by `keys`
KEYS := $(RUN)/keys
DEPLOYED := $(ARMS:%=$(RUN)/%/deploy/10_deploy.ipynb)
MEASURED := $(BLOCKS:%=$(RUN)/%/20_sweep.ipynb)
ANALYSED := $(addprefix $(RUN)/,30_acceptance.ipynb 40_iterations.ipynb 50_decision.ipynb)

reproduce: keys  ## measure what has changed and render the note (PROFILE=name)
	@if $(MAKE) -q --no-print-directory $(NOTE); then echo "nothing to do: $(NOTE) is current"; \
	else $(MAKE) --no-print-directory CALLER=$(CALLER) $(NOTE) && $(STEP) keys && \
		echo "done: $(NOTE)"; fi  # keys again: what was built meanwhile is known to the next call

retry: $(READY)  ## measure again the points that are not ok, then go on as `reproduce`
	@$(STEP) retry
	@$(MAKE) --no-print-directory CALLER=$(CALLER) reproduce

keys: $(READY)
	@$(PY) -m kvtop_lib.unchanged $(RUN) || $(STEP) keys

$(RUN)/manifest.json: $(KEYS)/manifest.key
	@$(STEP) manifest

$(RUN)/baseline/deploy/10_deploy.ipynb: $(KEYS)/baseline.deploy.key | $(RUN)/manifest.json
	@$(STEP) baseline/deploy

# a drafting arm's outputs are compared with the baseline's
$(filter-out $(RUN)/baseline/%,$(DEPLOYED)): $(RUN)/%/deploy/10_deploy.ipynb: \
		$(KEYS)/%.deploy.key $(RUN)/baseline/deploy/10_deploy.ipynb | $(RUN)/manifest.json
	@$(STEP) $*/deploy

# a block depends on its arm's key; all arms must have been deployed once, at whatever time
$(MEASURED): $(RUN)/%/20_sweep.ipynb: $(KEYS)/$$(firstword $$(subst /, ,$$*)).key | $(DEPLOYED)
	@$(STEP) $*

$(RUN)/derive.key: $(KEYS)/derive.key $(MEASURED)
	@$(STEP) derive

$(ANALYSED): $(RUN)/%.ipynb: $(KEYS)/%.key $(RUN)/derive.key
	@$(STEP) $*

$(NOTE): $(KEYS)/90_note.key $(RUN)/derive.key $(DEPLOYED) $(RUN)/manifest.json $(ANALYSED)
	@$(STEP) note

# ---- set-up -----------------------------------------------------------------------------------

install: $(READY)  ## create the environment (EXTRA=gpu: with all of SGLang)

$(READY):
	@PYTHON="$(PYTHON)" sh requirements/install.sh "$(VENV)" "$(EXTRA)"
	@rm -f $(VENV)/.kvtop-* && touch $@

model: $(READY)  ## build the checkpoint of the embedded model
	@$(PY) -m kvtop_lib.models.smollm2

# ---- everything else --------------------------------------------------------------------------

note: keys  ## render the note again from the records, without a server
	@$(STEP) derive
	@$(STEP) note

WORKERS ?= 2
test: $(READY)  ## all tests: unit, notebooks, engine, browser (WORKERS=2; 0: in one process)
	@OMP_NUM_THREADS=1 $(PY) -m pytest tests -n $(WORKERS) --no-loadscope-reorder $(PYTEST)

lint: $(READY)  ## style
	@$(PY) -m ruff check . && $(PY) -m ruff format --check .

lab: $(READY)  ## JupyterLab on this folder
	@$(PY) -m jupyterlab

BENCH ?= engine client
bench: model  ## what the parts cost (BENCH=engine: kernels, iterations; BENCH=client: client)
ifneq ($(filter engine,$(BENCH)),)
	@$(PY) -m kvtop_lib.sglang_plugin.kernels.bench
	@$(PY) -m kvtop_lib.sglang_plugin.drafts.bench
	@$(PY) -m kvtop_lib.sglang_plugin.bare_loop bench --model $(or $(KVTOP_CACHE),.cache/kvtop)/smollm2
	@$(PY) -m kvtop_lib.bench.served
	@$(PY) -m kvtop_lib.bench.recorder
endif
ifneq ($(filter client,$(BENCH)),)
	@$(PY) -m kvtop_lib.bench.client
endif

lossless: $(READY)  ## greedy outputs against the baseline's, of every arm or ARMS="a b" (PROMPTS=50)
	@$(PY) -m kvtop_lib.cli lossless $(PROFILE) $(or $(ARMS:%=--arm %),--every-arm) \
		$(and $(PROMPTS),--prompts $(PROMPTS))

soak: $(READY)  ## random arrivals, aborts and widths on one server (MINUTES=30)
	@$(PY) -m kvtop_lib.bench.soak --minutes $(or $(MINUTES),30)

train-mtp: $(READY)  ## train the MTP layer anew and replace the committed one (hours; resumes)
	@$(PY) -m kvtop_lib.runner notebooks/05_train_mtp_layer.ipynb $(OUTPUTS)/05_train_mtp_layer.ipynb

record: $(READY)  ## record an agent trace from the baseline (TRACE=file)
	@$(PY) -m kvtop_lib.cli trace record $(or $(TRACE),$(OUTPUTS)/trace.jsonl)

clean:  ## remove what can be made again without measuring; raw records stay
	rm -rf build *.egg-info .pytest_cache .ruff_cache .hypothesis
	rm -f $(OUTPUTS)/note.html $(OUTPUTS)/runs/*/note.html $(OUTPUTS)/runs/*/[3459][05]_*.ipynb
	find . -path ./.venv -prune -o -name __pycache__ -prune -exec rm -rf {} +
	[ ! -d $(OUTPUTS) ] || find $(OUTPUTS) \( -name '*.ipynb.partial' -o -name '*.html.partial' \) -delete
