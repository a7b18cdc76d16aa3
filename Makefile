# Every target creates .venv if necessary: the machine needs only python3, python3-venv and make.
# ARGS is passed to the program that the target runs: `make test ARGS="-k approval"` passes it to pytest.

PYTHON ?= python3
ARGS ?=

# Tests spend a third of their time waiting for processes and time-outs: three workers keep two cores busy.
TEST_WORKERS ?= 3

# Slow tests spend most of their time waiting for processes: seven workers keep two cores busy.
SLOW_WORKERS ?= 7

# Which tests take the longest is printed at the end.
DURATIONS := --durations 30 --durations-min 3

# To collect all tests, each worker needs half a minute; these files and folders have all slow ones.
SLOW_TESTS = $$(grep -rlE 'mark\.(slow|namespaces)' tests --include='*.py' | sed 's|/conftest\.py$$||' | tr '\n' ' ')

# Tests start hundreds of Python processes. With bytecode files, they do not compile the same modules each time.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help libraries demo test test-slow test-guests test-browser simulate simulate-bugs mutants lint bench reference docs man zipapp release deb screenshots constraints clean

help: ## Show this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1|\2/p' Makefile | while IFS='|' read -r target does; do \
	printf '  make %-12s %s\n' "$$target" "$$does"; done

libraries: .venv/.all ## Install all libraries; each target also installs those that it needs
	@$(MAKE) --no-print-directory .venv/.libvirt

demo: ## Run the demo: maintenance from announcement to end, in under 30 s
	@$(BIN)/forewarn demo $(ARGS)

test: .venv/.dev ## Run the quick tests, in random order
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal $(DURATIONS) -m "not slow and not namespaces and not browser" $(ARGS)

test-slow: .venv/.dev .venv/.libvirt ## Run the slow tests: kill -9, network namespaces, PostgreSQL, other handlers
	@$(BIN)/python -m pytest -n $(SLOW_WORKERS) --dist loadfile --no-loadscope-reorder -o testpaths="$(SLOW_TESTS)" $(DURATIONS) -m "(slow or namespaces) and not guests and not browser" $(ARGS)

test-guests: .venv/.dev .venv/.libvirt ## Run the tests with real guests under libvirt and QEMU; fetches a kernel for them
	@$(BIN)/python -m tests.guests.kernel
	@$(BIN)/python -m pytest -o testpaths=tests/guests -m guests $(ARGS)

test-browser: .venv/.dev ## Run the tests of the dashboard in Debian's Chromium
	@$(BIN)/python -m pytest -n 2 --dist loadfile -o testpaths=tests/browser -m browser $(ARGS)

simulate: .venv/.dev ## Simulate whole clusters with faults; ARGS="--seeds 100 --from 1", or "--seed 17" to replay one
	@$(BIN)/python -m forewarn.testing.simulation $(ARGS)

simulate-bugs: .venv/.dev ## Plant bugs, and count the seeds until the simulation finds each
	@$(BIN)/python -m tests.simulation.bugs $(ARGS)

mutants: .venv/.dev ## Plant small random changes, and print those that no test finds; ARGS="--count 30 core"
	@$(BIN)/python -m tests.mutation $(ARGS)

lint: .venv/.dev ## Check style, types, layers, spelling, wording and workflows
	@failed=; \
	check() { echo "+ $$*"; "$(BIN)/$$@" || failed="$$failed, $$*"; }; \
	check ruff check; \
	check ruff format --check; \
	check mypy --strict; \
	check mypy --strict --platform win32 src/forewarn/agent src/forewarn/client; \
	check lint-imports --no-logo; \
	check codespell; \
	check python tools/check_wording.py; \
	check check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yaml; \
	check check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml; \
	check zizmor --offline --quiet --no-progress .github packaging/github; \
	check pre-commit validate-config .pre-commit-config.yaml; \
	if [[ -n $$failed ]]; then echo "lint failed: $${failed#, }" >&2; exit 1; fi

bench: .venv/.dev ## Run the benchmark, and draw its picture; docs/benchmarks.md lists the Debian packages
	@$(BIN)/python -m bench $(ARGS)

reference: .venv/.dev ## Generate the reference pages from the code
	@$(BIN)/python tools/build_docs.py $(ARGS)

docs: .venv/.docs ## Build the documentation site into build/site, and check its links
	@$(BIN)/python tools/build_docs.py --check
	@$(BIN)/python -m sphinx -q -W --keep-going -j auto -b html -c docs -d build/doctrees . build/site $(ARGS)
	@$(BIN)/python tools/check_site.py build/site

man: .venv/.dev ## Write the manual pages into build/man
	@$(BIN)/python tools/build_man.py $(ARGS)

zipapp: ## Build the testing kit as one file, build/forewarn.pyz, for this platform and Python
	@$(BIN)/python tools/build_zipapp.py $(ARGS)

release: .venv/.release ## Build a release into dist, check it, and run the README's commands with it
	@$(BIN)/python tools/build_release.py $(ARGS)

deb: ## Build the Debian package into build/deb, with Debian's tools
	@$(PYTHON) tools/build_deb.py $(ARGS)

screenshots: .venv/.dev ## Take screenshots of the dashboard's pages into build/screenshots
	@$(BIN)/python -m tests.browser.screenshots $(ARGS)

constraints: ## Update constraints.txt to the newest versions
	@scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	$(PYTHON) -m venv "$$scratch"; \
	"$$scratch/bin/pip" install --quiet --disable-pip-version-check -e '.[server,postgresql,dev,docs,release]' hatchling editables; \
	sed '/^[^#]/d' constraints.txt > "$$scratch/constraints.txt"; \
	"$$scratch/bin/pip" freeze --exclude-editable --disable-pip-version-check >> "$$scratch/constraints.txt"; \
	grep '^libvirt-python==' constraints.txt >> "$$scratch/constraints.txt"; \
	cp "$$scratch/constraints.txt" constraints.txt

clean: ## Remove the output of builds and tests, but not .venv
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .schemathesis .coverage .coverage.*
	@find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# These two targets should start quickly: they install only their own libraries, unless .venv already has all of them.
ifeq ($(wildcard .venv/.dev),)
demo: .venv/.server
zipapp: .venv/.packaging
else
demo zipapp: .venv/.dev
endif

.venv/.server: EXTRAS := server
.venv/.packaging: EXTRAS := packaging
.venv/.dev: EXTRAS := server,postgresql,dev
.venv/.docs: EXTRAS := server,postgresql,dev,docs
.venv/.release: EXTRAS := server,postgresql,dev,release
# One call of pip for all sets is faster than one for each.
.venv/.all: EXTRAS := server,postgresql,dev,docs,release

# libvirt-python is compiled against this machine's libvirt. Without libvirt, its tests are skipped with a reason.
.venv/.libvirt: .venv/.dev
	@if pkg-config --exists libvirt 2> /dev/null; then \
	echo "Building libvirt's library into .venv"; \
	$(BIN)/pip install --no-input --quiet --disable-pip-version-check -c constraints.txt libvirt-python > .venv/pip.log 2>&1 \
	|| { cat .venv/pip.log >&2; echo "pip failed; its output is above" >&2; exit 1; }; fi
	@touch $@

# -c is for Forewarn's libraries. The two variables are for its build tools: older pip reads the first one, newer pip
# the second one.
.venv/.server .venv/.packaging .venv/.dev .venv/.docs .venv/.release .venv/.all: pyproject.toml constraints.txt
	@[[ -x $(BIN)/pip ]] || { echo "Making .venv"; $(PYTHON) -m venv --clear .venv; }
	@echo "Installing forewarn[$(EXTRAS)] into .venv"
	@PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	$(BIN)/pip install --no-input --no-compile -c constraints.txt -e '.[$(EXTRAS)]' > .venv/pip.log 2>&1 \
	|| { cat .venv/pip.log >&2; echo "pip failed; its output is above" >&2; exit 1; }
	@touch $@ $(if $(filter %.all,$@),.venv/.server .venv/.packaging .venv/.dev .venv/.docs .venv/.release)
