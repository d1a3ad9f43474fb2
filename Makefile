# Each target makes the environment that it needs: with uv where it is there, else with venv and pip.
PYTHON ?= python3
ENVS ?= .venv
UV := $(shell command -v uv 2>/dev/null)

.PHONY: demo test lint generate clean

demo: $(ENVS)/demo/ready  ## the four steps on a Delta table made for it
	$(ENVS)/demo/bin/uc-stage demo --size 200MB

# Files of tests, side by side: most tests wait for processes. Hundreds of those compile what they import otherwise.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(ENVS)/test/ready  ## every test, with coverage
	$(ENVS)/test/bin/python -m pytest --cov -n 2 --dist loadfile

lint: $(ENVS)/test/ready  ## style, types, layers, generated files
	$(ENVS)/test/bin/ruff check
	$(ENVS)/test/bin/ruff format --check
	$(ENVS)/test/bin/mypy
	$(ENVS)/test/bin/shellcheck examples/*.sh .ci/run
	$(ENVS)/test/bin/lint-imports
	$(ENVS)/test/bin/python tools/generate.py --check

generate: $(ENVS)/test/ready  ## completions and the generated parts of the README
	$(ENVS)/test/bin/python tools/generate.py

clean:
	rm -rf $(ENVS)

$(ENVS)/demo/ready: INSTALL = -e '.[hf]'
$(ENVS)/test/ready: INSTALL = -e '.[all]' --group dev

$(ENVS)/%/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "uc-stage needs Python 3.10 or newer: make PYTHON=python3.12 ...")'
	rm -rf $(@D)
ifdef UV
	uv venv --quiet --python $(PYTHON) $(@D)
	uv pip install --quiet --compile-bytecode --python $(@D)/bin/python $(INSTALL)
else
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(@D)/bin/python -m pip install --quiet $(INSTALL)
endif
	touch $@
