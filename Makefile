# The course in a few commands; `make help` lists them.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
READY  := $(VENV)/.ready
PYTEST := $(PY) -m pytest -n 2 --dist loadfile --doctest-modules

# Small arrays run faster on one thread, and two processes then share the machine fairly.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export PYTHONWARNINGS ?= ignore::DeprecationWarning

.DEFAULT_GOAL := help
.PHONY: help book test test-fast lab grade notebooks bench lock clean needs-torch needs-debian

help:           ## show this list
	@sed -n 's/^\([a-z-]*\): .*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

book: $(READY)  ## build the whole book in _build/html (no network needed to read it)
	$(PY) -m posenc_ref.bookkit.build

test: $(READY) needs-torch needs-debian  ## everything CI checks: lint, types, oracles, graders, notebooks, book, browser
	$(PYTEST) --nbval --nbval-current-env --nbval-sanitize-with tests/nbval_sanitize.cfg --nbval-cell-timeout 120 \
	    posenc_ref tests notebooks exercises/source

test-fast: $(READY) needs-torch  ## the same without notebooks, book and browser
	$(PYTEST) posenc_ref tests --ignore tests/test_book.py --ignore tests/test_browser.py

lab: $(READY)   ## open JupyterLab on the exercises
	$(PY) -m jupyter lab exercises

grade: $(READY)  ## grade the exercises and write exercises/report.html
	$(PY) -m posenc_ref.grading exercises

notebooks: $(READY) needs-torch  ## run all chapters and exercise sources in place, make the learners' copies
	$(PY) -m posenc_ref.bookkit.notebooks execute notebooks/*.ipynb exercises/source/*.ipynb
	$(PY) -m posenc_ref.grading release exercises/source/*.ipynb

bench: $(READY) needs-torch  ## time the package against others, on one thread, and write benchmarks/results.json (minutes)
	$(PY) benchmarks/bench.py

experiments: $(READY) needs-torch  ## train the small models whose results are missing (SUITE=chapters, book or full: minutes to hours)
	$(PY) -m posenc_ref.cli lab run --suite $(or $(SUITE),chapters)

lock: $(READY)  ## pin all dependencies anew in requirements.txt
	CUSTOM_COMPILE_COMMAND="make lock" $(PY) -m piptools compile --quiet --upgrade --all-extras --strip-extras \
	    --allow-unsafe --no-emit-options --annotation-style line --output-file requirements.new pyproject.toml
	@# the pin must fit every build of PyTorch: no "+cpu", and no package of the CUDA build
	sed -e 's/^\(torch==[0-9.]*\)+[a-z0-9]*/\1/' -e '/^nvidia-\|^triton\|^cuda-/d' requirements.new > requirements.txt
	rm requirements.new

clean:          ## remove what was built; keeps .venv and your exercises
	rm -rf _build build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	    { echo "Python 3.11 or newer is needed: sudo apt install python3 python3-venv, or make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || \
	    { rm -rf $(VENV); echo "python3 -m venv failed: sudo apt install python3-venv"; exit 1; }
	@echo "Installing the pinned requirements into $(VENV) (once; a few minutes) …"
	@$(PY) -m pip install --quiet --disable-pip-version-check --requirement requirements.txt && \
	    $(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . || \
	    { echo "The installation stopped; the same command goes on from here."; exit 1; }
	@touch $(READY)

needs-torch: $(READY)
	@$(PY) -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' || \
	    { echo "PyTorch is missing: $(VENV)/bin/pip install torch==2.13.0"; exit 1; }

needs-debian:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { echo "Chromium is missing, the browser tests need it: sudo apt install chromium"; exit 1; }
	@command -v bwrap >/dev/null || { echo "bubblewrap is missing, the grader's sandbox needs it: sudo apt install bubblewrap"; exit 1; }
