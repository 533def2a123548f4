# Everything from a fresh clone: each target makes the environment it needs, and a second run installs nothing again.
PYTHON ?= python3
EXTRAS ?= dev,serve,docs
BIN    := .venv/bin
RELEASE := build/release-tools
# Without this, every process of a test would compile torch again where the variable is set.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs test lint types unit tests coverage real gpu slow bench faults peers lock package sbom audit install clean

demo: install
	$(BIN)/posrec demo

test: lint types tests

# .ci/style.py prints how readable the code is, in figures that have limits.
lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mdformat --check *.md docs examples .github
	$(BIN)/python .ci/style.py

types: install
	$(BIN)/mypy

# Everything but what takes minutes or needs real data; tests that need a GPU are skipped without one.
tests: install
	$(BIN)/pytest -n auto --dist loadfile -m "not real and not slow"

# What these tests execute, a line for each room. It takes longer, since every line is counted.
coverage: install
	$(BIN)/pytest -n auto --dist loadfile -m "not real and not slow" --cov --cov-report=
	$(BIN)/python .ci/coverage_by_room.py

# The same without the tests that start servers, browsers or other processes.
unit: install
	$(BIN)/pytest -n auto --dist loadfile -m "not real and not slow and not process"

# Checks that read the real datasets (POSREC_DATA, ../shared/data by default); skipped where they are absent.
real: install
	$(BIN)/pytest -m real

# Checks that need a GPU: the kernels against their plain counterparts, captured steps against eager ones. They need
# torch and pytest alone, so that a machine with a GPU needs no environment of its own. Most of the time is compiling:
# with pytest-xdist, PYTEST_ADDOPTS="-n 14" takes two minutes on 16 cores.
gpu:
	PYTHONPATH=src $(PYTHON) -m pytest -q --noconftest tests/gpu

# Tests that take long, and more of the kinds that the default run has once: the whole demo, inductor, Ray, kills.
slow: install
	$(BIN)/pytest -m slow

# Speed and memory, each printed as a ratio against a baseline measured in the same run.
bench: install
	$(BIN)/python -m benchmarks.speed.prepare
	$(BIN)/python -m benchmarks.speed.recommend
	$(BIN)/python -m benchmarks.speed.serve --workers 2
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.speed.index
# Others need a prepared dataset or more time: the first lines of each say how to call it.

# Malformed requests, kill -9, full disks, damaged runs, overload and an hour under load (docs/reliability.md); a part that
# was interrupted goes on where it stopped.
faults: install
	$(BIN)/python -m benchmarks.reliability.faults

# Other libraries on the same samples, each until it stops (docs/peers.md): hours on an H200 with
# PEERS="--device cuda --threads 1 --jobs 13" and 16 cores; days without a GPU. It goes on where it was interrupted.
peers: install
	$(BIN)/python -m benchmarks.peers.measure prepared/diginetica prepared/yoochoose prepared/demo/data --work build/peers $(PEERS)

# The documentation site, in build/site: strict, so a link or an anchor that leads nowhere or a page without a place is an
# error. Not with --quiet: then MkDocs drops its warnings before it counts them.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "The site is in build/site; look at it with $(BIN)/mkdocs serve."

# requirements.lock, the hashes for docs/Dockerfile, from constraints.txt; it needs the package index.
lock: install
	$(BIN)/python .ci/lock.py

# The wheel and the source distribution, in build/package/dist: each is installed into an empty environment and tried.
package: $(RELEASE)/installed
	$(RELEASE)/bin/python .ci/package.py

# The software bill of materials of posrec[serve] (CycloneDX), from the environment in which `make package` installed the wheel.
sbom: $(RELEASE)/installed
	test -x build/package/wheel/bin/posrec || $(RELEASE)/bin/python .ci/package.py --only wheel
	$(RELEASE)/bin/cyclonedx-py environment build/package/wheel/bin/python --pyproject pyproject.toml \
		--output-reproducible --of JSON -o build/sbom.json
	@echo "The bill of materials is build/sbom.json."

# Known vulnerabilities in what the Docker image installs. --strict: a package that can't be looked up is a failure too.
audit: $(RELEASE)/installed
	grep '^torch==' constraints.txt > build/torch.txt
	$(RELEASE)/bin/pip-audit --strict --disable-pip --no-deps --progress-spinner off -r requirements.lock -r build/torch.txt \
		|| { echo "The audit failed: a package is vulnerable, or the database can't be reached; the lines above say which." >&2; exit 1; }

# The tools of a release need no posrec, so they have an environment of their own.
$(RELEASE)/installed: constraints.txt
	test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt build cyclonedx-bom pip-audit
	touch $@

# `make install EXTRAS=serve` installs less than all that tests and documentation need; `EXTRAS=` no extra at all.
install: .venv/installed-$(EXTRAS)

# --no-compile: Python compiles a module when it is first imported, and most never are.
.venv/installed-$(EXTRAS): pyproject.toml constraints.txt Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".$(EXTRAS:%=[%])"
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
