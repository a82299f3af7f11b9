# Two commands on a machine with Python and make: `make demo` and `make test`.
# Each makes its own virtual environment under .venv; remove it with `make clean`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What the tests need, and the tests, compiled. Those that start Spark also need a fast start: tests/support/quick_spark.py.
READY := $(VENV)/test.installed $(VENV)/tests.compiled
READY_FOR_SPARK := $(READY) $(VENV)/spark/classes.jsa
# Tests make and delete hundreds of thousands of files: on some disks each takes half a millisecond. The other targets use the disk.
IN_MEMORY = $(or $(shell { test $$(df --output=avail /dev/shm | tail -n 1) -gt 4000000 && echo /dev/shm; } 2>/dev/null),/tmp)
# Processes of pytest. One that crashes ends the run: pytest-xdist may wait for ever for the one that replaces it.
FOUR := -n 4 --max-worker-restart 0
TWO := -n 2 --max-worker-restart 0

# Which tests a target runs: tests/suites.py has the tables.
SUITE := $(BIN)/python -m tests.suites
# Campaigns, three at a time, since some wait: tests/crash/plans.py has what a plan contains.
JOBS ?= 3
PLAN := $(BIN)/python -m tests.crash plan --jobs $(JOBS)
# Each commit takes another third of the planted bugs.
COMMITS := $(shell git rev-list --count HEAD 2>/dev/null || echo 0)
# With seeds that no run had before: the second of the start.
FIRST ?= $(shell date +%s)

# Tests and campaigns start Python a thousand times: it shall keep what it compiled, whatever the surroundings say.
export PYTHONDONTWRITEBYTECODE :=
# Nor shall it leave assertions out: tests and campaigns consist of them.
export PYTHONOPTIMIZE :=

# The newest of each line of Spark that the connector is for but that is not installed.
SPARKS ?= 4.0 4.1 4.2
# Before 4.3 PySpark leaves a folder `artifacts` in the working directory, and before 4.1 sockets to the garbage collector.
OLD_SPARK := -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning
# The tools of a release have an environment of their own, so that none of them decides a version that is tested.
RELEASE := $(VENV)/release/bin

.PHONY: demo test long flights kills kills-pipeline models cluster campaigns crash search pythons free-threaded sparks connect neighbours airflow lint types docs screenshots package bounds perf \
	perf-spark clean

# The pipeline is killed in the middle of a stage, and then goes on. It needs no kill if an earlier demo is done.
demo: $(VENV)/examples.installed
	-$(BIN)/python examples/flights_pipeline.py --directory demo --kill add
	$(BIN)/python examples/flights_pipeline.py --directory demo

test: export TMPDIR ?= $(IN_MEMORY)
test: $(READY)
	$(SUITE) test $(FOUR) --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m coverage report --fail-under=100
	$(PLAN) minute

long: $(READY_FOR_SPARK)
	$(SUITE) long $(FOUR) --dist loadfile --no-loadscope-reorder

flights: $(READY_FOR_SPARK)
	EVERY_PLACE=1 $(SUITE) flights $(TWO) --dist loadfile

# Spark, of which every process is killed at every place, one after the other: 52 of them. And pipelines of stages.
# With PARTS=3 it takes one place in three, and with each commit others.
kills: export PART := $(COMMITS)
kills: export PARTS ?= 1
kills: $(READY_FOR_SPARK)
	EVERY_PLACE=1 $(SUITE) kills $(TWO) --dist load --no-loadscope-reorder
	SPARK_MODE=connect $(SUITE) kills-connect $(TWO) --dist load

# The pipeline of ten stages on Spark, whose driver is killed with its Java at each place, and 200 times at random: hours.
kills-pipeline: $(READY_FOR_SPARK)
	KILLS=200 $(SUITE) kills-pipeline $(TWO) --dist load -s -o faulthandler_timeout=0

# Models of protocols, whole within their bounds, and the bugs that are planted in them. It needs spin and gcc. With
# PARTS=3 it takes one in three of the large searches, and with each commit others: a model that stays has no other result.
models: export PART := $(COMMITS)
models: export PARTS ?= 1
models: $(VENV)/test.installed
	LARGE_MODELS=1 $(SUITE) models $(TWO) --dist load

# Hand-offs on a cluster of Spark whose machines share a file system and nothing else, with each kind of loss: half an hour.
# apt-get install --no-install-recommends glusterfs-server sshfs openssh-sftp-server iproute2 strace
cluster: $(VENV)/test.installed
	$(SUITE) cluster -o faulthandler_timeout=0

# Of each campaign as much as .ci/run has time for, and a third of the planted bugs.
campaigns: $(VENV)/test.installed
	$(PLAN) commit --seed $(COMMITS)

crash: $(VENV)/test.installed
	$(PLAN) release

# Random programs with new seeds.
search: $(VENV)/test.installed
	$(PLAN) search --seed $(FIRST)

# An environment for each, of a gigabyte, for classic sessions and those of Spark Connect; and one for its client alone.
sparks: $(SPARKS:%=$(VENV)/spark-%.tested)

$(VENV)/spark-%.tested:
	$(PYTHON) -m venv $(VENV)/spark-$*
	$(VENV)/spark-$*/bin/python -m pip install --disable-pip-version-check --quiet --editable '.[test]' 'pyspark==$*.*'
	$(PYTHON) -m venv $(VENV)/client-$*
	$(VENV)/client-$*/bin/python -m pip install --disable-pip-version-check --quiet --editable '.[spark-client]' 'pyspark-client==$*.*'
	-$(VENV)/spark-$*/bin/python -m tests.support.quick_spark
	EVERY_PLACE=1 $(VENV)/spark-$*/bin/python -m tests.suites sparks $(OLD_SPARK)
	SPARK_MODE=connect SPARK_CLIENT_PYTHON=$(CURDIR)/$(VENV)/client-$*/bin/python \
		$(VENV)/spark-$*/bin/python -m tests.suites sparks-connect $(OLD_SPARK)

# The tests with Pythons that the machine lacks, in a folder with a Debian of its own: a quarter of an hour for each. It
# needs root, debootstrap and unshare. What is there already is used again.
PYTHONS := 3.14
DEBIAN := $(VENV)/debian-sid
inside = unshare --mount sh -c 'mount --rbind /dev $(1)/dev && mount -t proc proc $(1)/proc && exec chroot $(1) "$$@"' -
IN_DEBIAN := $(call inside,$(DEBIAN))
pythons: $(PYTHONS:%=$(VENV)/python-%.tested)

$(VENV)/python-%.tested: $(DEBIAN).made
	$(IN_DEBIAN) apt-get update --quiet=2 --option Acquire::Check-Valid-Until=false  # nor does debootstrap check that
	$(IN_DEBIAN) apt-get install --yes --quiet=2 --no-install-recommends \
		python$*-full python$*-dev libpython$*-testsuite gcc libc6-dev
	rm -rf $(DEBIAN)/srv/tree && mkdir -p $(DEBIAN)/srv/tree && git archive HEAD | tar --extract --directory $(DEBIAN)/srv/tree
	$(IN_DEBIAN) python$* -m venv /srv/python-$*
	$(IN_DEBIAN) sh -c 'cd /srv/tree && /srv/python-$*/bin/python -m pip install --disable-pip-version-check --quiet --editable ".[test]"'
	$(IN_DEBIAN) sh -c 'cd /srv/tree && /srv/python-$*/bin/python -m tests.suites pythons $(TWO)'
	$(IN_DEBIAN) sh -c 'cd /srv/tree && /srv/python-$*/bin/python -m tests.crash interrupts --parts 16 --jobs 2'

# The tests with a free-threaded CPython 3.13 without a GIL: three quarters of an hour. Debian has only its source, so a
# folder with a Debian of its own builds it. It needs root, debootstrap and unshare. What is there already is used again.
FREE := $(VENV)/debian-trixie
IN_FREE := $(call inside,$(FREE))
# The packages of the extra `test` that have wheels for it, perhaps of an older version: those for encryption, compression
# and Spark have none.
FREE_EXTRAS := arrow,avro,cli,progress,prometheus
FREE_PACKAGES := 'pytest>=8,<10' 'pytest-benchmark>=5,<6' 'pytest-xdist>=3.6,<4' 'hypothesis>=6.115,<7' 'cbor2>=5.6' aiofiles \
	'aiosqlite>=0.20,<1' 'persist-queue>=1.1,<2' 'queuelib>=1.7,<2' 'litequeue>=0.9,<1' 'diskcache>=5.6,<6' 'huey>=2.5,<4' \
	'redis>=5.2' 'greenstalk>=2,<3'
BUILT_WITH := gcc libc6-dev make pkg-config xz-utils dpkg-dev libssl-dev libffi-dev zlib1g-dev libbz2-dev liblzma-dev libsqlite3-dev \
	libreadline-dev uuid-dev
free-threaded: $(VENV)/python-free-threaded.made
	rm -rf $(FREE)/srv/tree && mkdir -p $(FREE)/srv/tree && git archive HEAD | tar --extract --directory $(FREE)/srv/tree
	$(IN_FREE) /opt/python/bin/python3.13t -m venv /srv/python
	$(IN_FREE) sh -c "cd /srv/tree && /srv/python/bin/python -m pip install --disable-pip-version-check --quiet \
		--prefer-binary --editable '.[$(FREE_EXTRAS)]' $(FREE_PACKAGES)"
	$(IN_FREE) sh -c 'cd /srv/tree && PYTHON_GIL=0 /srv/python/bin/python -m tests.suites free-threaded $(TWO)'

$(VENV)/python-free-threaded.made: $(FREE).made
	sed 's/^deb /deb-src /' $(FREE)/etc/apt/sources.list > $(FREE)/etc/apt/sources.list.d/source.list
	$(IN_FREE) sh -c 'apt-get update --quiet=2 && apt-get install --yes --quiet=2 --no-install-recommends $(BUILT_WITH)'
	$(IN_FREE) sh -c 'mkdir -p /srv/source && cd /srv/source && apt-get source --quiet=2 --download-only python3.13 && \
		tar --extract --file python3.13_*.orig.tar.xz && cd Python-3.13.* && \
		./configure --quiet --disable-gil --prefix=/opt/python && make --quiet --jobs=2 && make --quiet install'
	touch $@

$(DEBIAN).made $(FREE).made: $(VENV)/debian-%.made:
	rm -rf $(VENV)/debian-$* && mkdir -p $(VENV)
	unshare --mount debootstrap --variant=minbase --include=ca-certificates,git $* $(VENV)/debian-$*
	cp /etc/ssl/certs/ca-certificates.crt $(VENV)/debian-$*/etc/ssl/certs/
	touch $@

# The same tests and kills in sessions of Spark Connect, and a program with pyspark-client alone: an hour. The kills of
# hand-offs in classic sessions are here as well: make flights has others.
connect: export SPARK_MODE := connect
connect: export SPARK_CLIENT_PYTHON := $(CURDIR)/$(VENV)/client/bin/python
connect: $(READY_FOR_SPARK) $(VENV)/client.made
	EVERY_PLACE=1 $(SUITE) connect $(TWO) --dist load --no-loadscope-reorder
	SPARK_MODE= EVERY_PLACE=1 $(SUITE) hand-offs $(TWO) --dist load

$(VENV)/client.made: setup.cfg
	$(PYTHON) -m venv $(VENV)/client
	$(VENV)/client/bin/python -m pip install --disable-pip-version-check --quiet --editable '.[spark-client]'
	touch $@

# Airflow, a declarative pipeline of Spark, and a stream over several queues that is killed around a commit.
neighbours: airflow $(READY_FOR_SPARK)
	$(SUITE) neighbours $(TWO) --dist load
	SPARK_MODE=connect $(SUITE) declarative

# The provider for Airflow, in an environment of its own, of a third of a gigabyte.
airflow: $(VENV)/airflow.made
	$(VENV)/airflow/bin/python -m tests.suites airflow

$(VENV)/airflow.made: setup.cfg
	$(PYTHON) -m venv $(VENV)/airflow
	$(VENV)/airflow/bin/python -m pip install --disable-pip-version-check --quiet --editable '.[airflow]' \
		'pytest>=8,<10' 'pytest-benchmark>=5,<6' 'hypothesis>=6.115,<7'
	touch $@

lint: $(VENV)/test.installed
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

# The types of the package in programs of users, as pyright and pyrefly see them: their editors use these.
types: $(VENV)/test.installed $(VENV)/types.made
	$(VENV)/types/bin/basedpyright --pythonpath $(BIN)/python
	$(VENV)/types/bin/pyrefly check --python-interpreter-path $(BIN)/python --search-path . --search-path examples \
		tests/api/item_types.py examples/*.py

$(VENV)/types.made:
	$(PYTHON) -m venv $(VENV)/types
	$(VENV)/types/bin/python -m pip install --disable-pip-version-check --quiet 'basedpyright>=1.40,<2' 'pyrefly>=1,<2'
	touch $@

# The documentation site: docs/_build/html/index.html.
docs: $(VENV)/docs.installed
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -E -q -b html docs docs/_build/html

# Pictures of its front page, as wide as a phone and as a screen; look at them after a change of the site.
screenshots: docs
	for width in 400 1280; do chromium --headless --no-sandbox --hide-scrollbars --window-size=$$width,1200 \
		--screenshot=docs/screenshots/front_page_$$width.png file://$(CURDIR)/docs/_build/html/index.html; done

# The distributions, in dist/: see release/check.py. A released file has the time of its commit.
package: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1577836800)
package: $(READY) $(VENV)/release.installed
	$(RELEASE)/python release/check.py dist
	cd dist/unpacked && PYTHONPATH=$(CURDIR)/dist/unpacked $(CURDIR)/$(SUITE) unpacked $(FOUR) --dist loadfile
	rm -rf dist/unpacked

# Two environments of a gigabyte: the versions of the lower bounds in setup.cfg, and the newest below the upper ones.
bounds: $(VENV)/bounds-lowest-direct.tested $(VENV)/bounds-highest.tested

$(VENV)/bounds-%.tested: $(VENV)/release.installed
	rm -rf $(VENV)/bounds-$*
	$(RELEASE)/uv venv --quiet --python $(PYTHON) $(VENV)/bounds-$*
	$(RELEASE)/uv pip install --quiet --python $(VENV)/bounds-$* --resolution $* --editable '.[test,docs]'
	$(VENV)/bounds-$*/bin/python -m tests.suites bounds $(TWO) --dist loadfile $(OLD_SPARK)
	$(VENV)/bounds-$*/bin/python -m sphinx --fail-on-warning --keep-going -E -q -b html docs $(VENV)/bounds-$*/site

perf: $(VENV)/test.installed
	$(BIN)/python -m perf --results perf/results

# The programs of the section "Spark" of perf/README.md, with its rounds: three quarters of an hour.
perf-spark: $(VENV)/test.installed
	$(BIN)/python -m perf.studies.stages --rounds 3 --results perf/results
	$(BIN)/python -m perf.studies.pipelines --results perf/results
	$(BIN)/python -m perf.studies.spark_rows --results perf/results
	$(BIN)/python -m perf.studies.typed_rows --results perf/results
	$(BIN)/python -m perf.studies.streams --batches 20 --rounds 3 --results perf/results
	$(BIN)/python -m perf.studies.manifests --rounds 3 --results perf/results
	$(BIN)/python -m perf.studies.planning --rounds 3 --results perf/results
	$(BIN)/python -m perf.studies.soak --minutes 20 --results perf/results

# Without Java it is not made, and the tests that need it are skipped. If it fails, Spark starts as slowly as always.
$(VENV)/spark/classes.jsa: $(VENV)/test.installed tests/support/quick_spark.py
	-$(BIN)/python -m tests.support.quick_spark

# Else each process of pytest compiles each test for itself, which takes half a minute of a core.
$(VENV)/tests.compiled: $(VENV)/test.installed
	printf '%s\n' 'tests/unit tests/api' 'tests/misuse tests/faces tests/workers tests/predecessors tests/project tests/durability' | \
		xargs -L 1 -P 2 $(BIN)/python -m pytest --collect-only -qq > $@.out
	mv $@.out $@

$(VENV)/release.installed:
	$(PYTHON) -m venv $(VENV)/release
	$(RELEASE)/python -m pip install --disable-pip-version-check --quiet 'build>=1.2' 'twine>=6.1' 'uv>=0.5'
	touch $@

$(VENV)/%.installed: setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis demo docs/_build docs/_generated
