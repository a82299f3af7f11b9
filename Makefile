# Two commands on a machine with Python and make: `make demo` and `make test`.
# Each makes its own virtual environment under .venv; remove it with `make clean`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The modules of which every branch is tested; only they are watched, since that takes its time.
COVERED := codecs core.header core.operations core.block core.encryption core.frame core.state core.intervals \
	core.availability core.delivery_counts core.dead_letter system.path_errors system.quota system.event_log storage.log \
	storage.log_reader storage.publication storage.inbox_limits storage.inbox_access engine.commit \
	engine.compaction engine.store engine.admission engine.segment_use engine.adoption engine.inbox engine.subscriptions \
	engine.two_phase engine.reader engine.context recovery.mounts recovery.replay recovery.in_doubt recovery.opening \
	system.progress measuring.metrics runtime.multi_queue runtime.retries runtime.inspection runtime.session_state runtime.pipeline \
	interprocess.producer interprocess.multi_writer interprocess.splits interprocess.consumer_requests \
	interprocess.snapshot_view faces.lifecycle faces.refusals typed options subscription transactions \
	serving.protocol serving.errors serving.values serving.waits serving.portion serving.service serving.calls rows storage.schema_files
# The tests that do so, but for those that are marked unwatched; the others run unwatched.
COVERING := $(patsubst %,tests/unit/engine/test_%.py,store reader_races trim spill commit admission compaction \
	compaction_faults segment_use adoption two_phase)
COVERING += $(patsubst %,tests/unit/recovery/test_%.py,mounts replay opening check in_doubt decisions)
COVERING += $(patsubst %,tests/unit/core/test_%.py,formats intervals state availability encryption delivery_counts \
	dead_letter)
COVERING += tests/unit/measuring/test_metrics.py
COVERING += tests/unit/codecs/test_enclosed.py tests/workers/test_enclosed.py
COVERING += $(patsubst %,tests/unit/runtime/test_%.py,open_queue disown maintenance waiting retries dead_letters \
	history pipeline ticket_futures)
COVERING += $(patsubst %,tests/unit/storage/test_%.py,layout lock log pool segment schema_files)
COVERING += $(patsubst %,tests/unit/rows/test_%.py,schema registry codec)
COVERING += $(patsubst %,tests/unit/system/test_%.py,path_errors quota event_log progress)
COVERING += $(patsubst %,tests/unit/serving/test_%.py,protocol errors values service) tests/workers/test_sessions.py \
	tests/workers/test_other_options.py
COVERING += tests/unit/faces/test_lifecycle.py tests/unit/faces/test_attempts.py tests/faces/test_aio_sessions.py
COVERING += $(patsubst %,tests/api/test_%.py,progress queue options encryption subscriptions flush_all codecs tickets)
COVERING += $(patsubst %,tests/predecessors/test_%.py,diskqueue_faults diskqueue_weaknesses diskqueue_log)
COVERING += $(patsubst %,tests/unit/interprocess/test_%.py,producer producer_crashes producer_failures multi_writer splits consumer_requests \
	snapshot_view)
COVERING += $(patsubst %,tests/misuse/test_%.py,corners sessions scarce_resources renames errors arguments inboxes \
	inbox_limits trust foreign_directories location_repair identities passing_errors)

# What tests need that start Spark, for a fast start: see tests/support/quick_spark.py. And the tests, compiled.
READY := $(VENV)/test.installed $(VENV)/spark/classes.jsa $(VENV)/tests.compiled
# Tests make and delete hundreds of thousands of files: on some disks each takes half a millisecond. The other targets use the disk.
IN_MEMORY = $(or $(shell { test $$(df --output=avail /dev/shm | tail -n 1) -gt 4000000 && echo /dev/shm; } 2>/dev/null),/tmp)
# Processes of pytest. One that crashes ends the run: pytest-xdist may wait for ever for the one that replaces it.
FOUR := -n 4 --max-worker-restart 0
THREE := -n 3 --max-worker-restart 0
TWO := -n 2 --max-worker-restart 0

# What a Python can do in another way than those of make test.
ON_PYTHONS := $(patsubst %,tests/%,unit api misuse faces workers peers golden predecessors)

# What make test leaves out, since it takes its time; the targets of these names run it.
# The main job, with all its data and killed at every place.
FLIGHTS := tests/examples/test_flights_killed.py tests/examples/test_flights_pipeline.py
# The processes of Spark, killed; what they call; what only rehearses make perf.
KILLED_PIPELINE := tests/spark/test_pipeline_killed.py
KILLS := $(KILLED_PIPELINE) tests/spark/test_killed.py tests/spark/test_tasks_that_run_twice.py tests/examples/test_streaming_pipeline.py \
	tests/spark/test_processes.py perf/tests/test_spark_perf.py
# A stream over several queues, killed around a commit: with the other neighbours.
NEIGHBOURS := tests/examples/test_route_batches.py
# Machines in namespaces: file systems over a network, and a cluster of Spark on them. It needs root and packages.
CLUSTER := tests/durability/test_network_disks.py tests/spark/test_cluster.py tests/spark/test_cluster_killed.py
# The models of protocols, which spin searches: they change with the protocols, not with the code.
MODELS := tests/models
# The tests of other queues, on each Python there is; a crawl; the command line in a process of its own for each verb, a
# terminal, a browser; importers; two consumers that are killed; other surroundings; other users; hostile files
# of any size; moves of files, interrupted at every call; files flipped at every bit; kills at every step, of one process, of many and of imports; disks that are
# full, fail, and lack something at every call; streams of Spark, the code of the documentation, and rehearsals of
# make perf.
LONG := tests/project/test_documents_spark.py tests/peers/test_cpython.py tests/workers/test_simulated_network.py tests/faces/test_compat_shared.py tests/faces/test_scrapy.py tests/faces/test_cli.py tests/faces/test_cli_errors.py tests/faces/test_cli_looks.py tests/faces/test_cli_report.py \
	tests/faces/test_cli_top.py tests/faces/test_cli_serve.py tests/faces/test_cli_worker.py tests/faces/test_importers.py tests/examples/test_fan_out.py \
	tests/peers/test_persistqueue.py tests/peers/test_queuelib.py tests/peers/test_asked.py tests/peers/test_coming_from.py \
	tests/peers/test_asyncio.py tests/durability/test_compat_killed.py tests/examples/test_async_workers.py \
	tests/misuse/test_command_line.py tests/misuse/test_surroundings.py tests/misuse/test_large_inboxes.py \
	tests/misuse/test_shared_inboxes.py tests/unit/storage/test_locations.py \
	tests/predecessors/test_diskqueue_damage.py tests/predecessors/test_diskqueue_kills.py tests/durability/test_flips.py tests/misuse/test_scarce_calls.py \
	tests/durability/test_processes.py tests/durability/test_producers_killed.py tests/durability/test_several_killed.py tests/durability/test_import_killed.py \
	tests/durability/test_full_disk.py tests/predecessors/test_diskqueue_failing_disk.py tests/spark/test_java.py tests/spark/test_stream.py tests/spark/test_rows.py tests/spark/test_typed_rows.py tests/spark/test_batches.py tests/project/test_pages.py \
	perf/tests/test_perf.py \
	perf/tests/test_worker_processes.py

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

# The connector's own tests, on the newest of each line of Spark that it is for but is not installed.
SPARKS ?= 4.0 4.1 4.2
ON_SPARK := tests/spark/test_java.py tests/spark/test_handoff.py tests/spark/test_rows.py tests/spark/test_source.py tests/spark/test_stream.py tests/spark/test_typed_rows.py \
	tests/spark/test_workers.py \
	tests/spark/test_batches.py tests/spark/test_several_machines.py tests/spark/test_processes.py tests/spark/test_pipeline.py tests/spark/test_pipeline_failures.py \
	tests/spark/test_pipeline_on_spark.py
# What make kills runs under Spark Connect; make connect runs all of the connector's tests there.
ON_CONNECT := tests/spark/test_killed.py tests/spark/test_connect.py::test_a_query_is_found_by_its_name

# These tests run from the unpacked source distribution, and with the oldest and newest versions of all dependencies.
UNPACKED := tests/project tests/api
# But not what looks at each file for itself: the distribution has the same files.
UNPACKED += --ignore=tests/project/test_language.py --ignore=tests/project/test_layers.py
BOUNDS := tests/api tests/faces tests/unit/core tests/unit/system tests/spark/test_handoff.py tests/spark/test_source.py
# Before 4.3 PySpark leaves a folder `artifacts` in the working directory, and before 4.1 sockets to the garbage collector.
BOUNDS += -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning
# The tools of a release have an environment of their own, so that none of them decides a version that is tested.
RELEASE := $(VENV)/release/bin

.PHONY: demo test long flights kills kills-pipeline models cluster campaigns crash search pythons free-threaded sparks connect neighbours airflow lint docs screenshots package bounds perf \
	perf-spark clean

# The pipeline is killed in the middle of a stage, and then goes on. It needs no kill if an earlier demo is done.
demo: $(VENV)/examples.installed
	-$(BIN)/python examples/flights_pipeline.py --directory demo --kill add
	$(BIN)/python examples/flights_pipeline.py --directory demo

test: export WATCHED := $(COVERING)
test: export TMPDIR ?= $(IN_MEMORY)
test: $(READY)
	$(BIN)/python -m pytest $(THREE) --dist loadfile --no-loadscope-reorder $(COVERED:%=--cov=persistentqueue.%) --cov-report= \
		$(FLIGHTS:%=--ignore=%) $(KILLS:%=--ignore=%) $(CLUSTER:%=--ignore=%) $(MODELS:%=--ignore=%) $(LONG:%=--ignore=%) \
		$(NEIGHBOURS:%=--ignore=%)
	$(BIN)/python -m coverage report --fail-under=100
	$(PLAN) minute

long: $(READY)
	$(BIN)/python -m pytest $(FOUR) --dist load --no-loadscope-reorder $(LONG)

flights: $(READY)
	EVERY_PLACE=1 $(BIN)/python -m pytest $(TWO) --dist loadfile $(FLIGHTS)

# Spark, of which every process is killed at every place, one after the other: 52 of them. And pipelines of stages.
# With PARTS=3 it takes one place in three, and with each commit others.
kills: export PART := $(COMMITS)
kills: export PARTS ?= 1
kills: $(READY)
	EVERY_PLACE=1 $(BIN)/python -m pytest $(TWO) --dist load --no-loadscope-reorder $(KILLS) -k 'not hand-offs'
	SPARK_MODE=connect $(BIN)/python -m pytest $(TWO) --dist load $(ON_CONNECT)

# The pipeline of ten stages on Spark, whose driver is killed with its Java at each place, and 200 times at random: hours.
kills-pipeline: $(READY)
	KILLS=200 $(BIN)/python -m pytest $(TWO) --dist load -s -o faulthandler_timeout=0 $(KILLED_PIPELINE)

# Models of protocols, whole within their bounds, and the bugs that are planted in them. It needs spin and gcc.
models: $(VENV)/test.installed
	LARGE_MODELS=1 $(BIN)/python -m pytest $(TWO) --dist load $(MODELS)

# Hand-offs on a cluster of Spark whose machines share a file system and nothing else, with each kind of loss: half an hour.
# apt-get install --no-install-recommends glusterfs-server sshfs openssh-sftp-server iproute2 strace
cluster: $(VENV)/test.installed
	$(BIN)/python -m pytest -o faulthandler_timeout=0 $(CLUSTER)

# Of each campaign as much as .ci/run has time for, and a third of the planted bugs.
campaigns: $(VENV)/test.installed
	$(PLAN) commit --seed $(COMMITS)

crash: $(VENV)/test.installed
	$(PLAN) release

# Random programs with new seeds.
search: $(VENV)/test.installed
	$(PLAN) search --seed $(FIRST)

# An environment for each, of a gigabyte, for classic sessions and those of Spark Connect. Before 4.1 PySpark itself
# leaves sockets to the garbage collector.
sparks: $(SPARKS:%=$(VENV)/spark-%.tested)

$(VENV)/spark-%.tested:
	$(PYTHON) -m venv $(VENV)/spark-$*
	$(VENV)/spark-$*/bin/python -m pip install --disable-pip-version-check --quiet --editable '.[test]' 'pyspark==$*.*'
	-$(VENV)/spark-$*/bin/python -m tests.support.quick_spark
	EVERY_PLACE=1 $(VENV)/spark-$*/bin/python -m pytest -W ignore::ResourceWarning \
		-W ignore::pytest.PytestUnraisableExceptionWarning $(ON_SPARK)
	SPARK_MODE=connect $(VENV)/spark-$*/bin/python -m pytest -W ignore::ResourceWarning \
		-W ignore::pytest.PytestUnraisableExceptionWarning tests/spark/test_connect.py $(ON_SPARK) -k 'not java'

# The tests with Pythons that the machine lacks, in a folder with a Debian of its own: a quarter of an hour for each. It
# needs root, debootstrap and unshare. What is there already is used again.
PYTHONS := 3.14
DEBIAN := $(VENV)/debian
IN_DEBIAN := unshare --mount sh -c 'mount --rbind /dev $(DEBIAN)/dev && mount -t proc proc $(DEBIAN)/proc && \
	exec chroot $(DEBIAN) "$$@"' -
pythons: $(PYTHONS:%=$(VENV)/python-%.tested)

$(VENV)/python-%.tested: $(DEBIAN)/etc/debian_version
	$(IN_DEBIAN) apt-get install --yes --quiet=2 --no-install-recommends python$*-full python$*-dev libpython$*-testsuite gcc libc6-dev
	mkdir -p $(DEBIAN)/srv/tree && git archive HEAD | tar --extract --directory $(DEBIAN)/srv/tree
	$(IN_DEBIAN) python$* -m venv /srv/python-$*
	$(IN_DEBIAN) sh -c 'cd /srv/tree && /srv/python-$*/bin/python -m pip install --disable-pip-version-check --quiet --editable ".[test]"'
	$(IN_DEBIAN) sh -c 'cd /srv/tree && /srv/python-$*/bin/python -m pytest $(TWO) $(ON_PYTHONS)'
	$(IN_DEBIAN) sh -c 'cd /srv/tree && /srv/python-$*/bin/python -m tests.crash interrupts --parts 16 --jobs 2'

$(DEBIAN)/etc/debian_version:
	mkdir -p $(VENV)
	debootstrap --variant=minbase --include=ca-certificates,git sid $(DEBIAN)
	cp /etc/ssl/certs/ca-certificates.crt $(DEBIAN)/etc/ssl/certs/

# The tests with a free-threaded CPython 3.13 without a GIL: three quarters of an hour. Debian has only its source, so a
# folder with a Debian of its own builds it. It needs root, debootstrap and unshare. What is there already is used again.
FREE := $(VENV)/debian-free-threaded
IN_FREE := unshare --mount sh -c 'mount --rbind /dev $(FREE)/dev && mount -t proc proc $(FREE)/proc && \
	exec chroot $(FREE) "$$@"' -
ON_FREE := $(patsubst %,tests/%,unit api misuse faces workers peers)
# The packages of the extra `test` that have wheels for it: those for encryption, compression and Spark have none.
FREE_EXTRAS := arrow,avro,cli,progress,prometheus
FREE_PACKAGES := 'pytest>=8,<10' 'pytest-benchmark>=5,<6' 'pytest-xdist>=3.6,<4' 'hypothesis>=6.115,<7' 'cbor2>=5.6' aiofiles \
	'aiosqlite>=0.20,<1' 'persist-queue>=1.1,<2' 'queuelib>=1.7,<2' 'litequeue>=0.9,<1' 'diskcache>=5.6,<6' 'huey>=2.5,<4' \
	'redis>=5.2' 'greenstalk>=2,<3'
# The tests that need such a package, or mypy. The last one leaves an error in a circle of objects, with a socket that
# this Python may release before the object that closes it.
WITHOUT_EXTRAS := $(patsubst %,--ignore=tests/%.py,unit/codecs/test_enclosed unit/core/test_encryption workers/test_enclosed \
	faces/test_aio_steps faces/test_dashboard api/test_codecs api/test_encryption) -k "not msgpack and not encrypted and \
	not key_file and not headers_are_read_without and not settings_that_do_not_go and not cannot_be_opened_come_first and \
	not every_error_survives and not row_22 and not type_checker and not test_looks_at_many_items"
BUILT_WITH := gcc libc6-dev make pkg-config xz-utils dpkg-dev libssl-dev libffi-dev zlib1g-dev libbz2-dev liblzma-dev libsqlite3-dev \
	libreadline-dev uuid-dev
free-threaded: $(FREE)/opt/python/bin/python3.13t
	rm -rf $(FREE)/srv/tree && mkdir -p $(FREE)/srv/tree && git archive HEAD | tar --extract --directory $(FREE)/srv/tree
	$(IN_FREE) /opt/python/bin/python3.13t -m venv /srv/python
	$(IN_FREE) sh -c "cd /srv/tree && /srv/python/bin/python -m pip install --disable-pip-version-check --quiet \
		--only-binary hypothesis --editable '.[$(FREE_EXTRAS)]' $(FREE_PACKAGES)"
	$(IN_FREE) sh -c 'cd /srv/tree && PYTHON_GIL=0 /srv/python/bin/python -m pytest $(TWO) $(ON_FREE) $(WITHOUT_EXTRAS)'

$(FREE)/opt/python/bin/python3.13t: $(FREE)/etc/debian_version
	$(IN_FREE) sh -c 'apt-get update --quiet=2 && apt-get install --yes --quiet=2 --no-install-recommends $(BUILT_WITH)'
	$(IN_FREE) sh -c 'mkdir -p /srv/source && cd /srv/source && apt-get source --quiet=2 --download-only python3.13 && \
		tar --extract --file python3.13_*.orig.tar.xz && cd Python-3.13.* && \
		./configure --quiet --disable-gil --prefix=/opt/python && make --quiet --jobs=2 && make --quiet install'

$(FREE)/etc/debian_version:
	mkdir -p $(VENV)
	unshare --mount debootstrap --variant=minbase --include=ca-certificates,git trixie $(FREE)
	cp /etc/ssl/certs/ca-certificates.crt $(FREE)/etc/ssl/certs/
	sed 's/^deb /deb-src /' $(FREE)/etc/apt/sources.list > $(FREE)/etc/apt/sources.list.d/source.list

# The same tests and kills in sessions of Spark Connect, and a program with pyspark-client alone: an hour. The kills of
# hand-offs in classic sessions are here as well: make flights has others.
connect: export SPARK_MODE := connect
connect: export SPARK_CLIENT_PYTHON := $(CURDIR)/$(VENV)/client/bin/python
connect: $(READY) $(VENV)/client.made
	EVERY_PLACE=1 $(BIN)/python -m pytest $(TWO) --dist load --no-loadscope-reorder $(ON_SPARK) tests/spark/test_connect.py \
		tests/spark/test_killed.py
	SPARK_MODE= EVERY_PLACE=1 $(BIN)/python -m pytest $(TWO) --dist load tests/spark/test_killed.py -k hand-offs

$(VENV)/client.made: setup.cfg
	$(PYTHON) -m venv $(VENV)/client
	$(VENV)/client/bin/python -m pip install --disable-pip-version-check --quiet --editable '.[spark-client]'
	touch $@

# Airflow, a declarative pipeline of Spark, and a stream over several queues that is killed around a commit.
neighbours: airflow $(READY)
	$(BIN)/python -m pytest $(TWO) --dist load $(NEIGHBOURS)
	SPARK_MODE=connect $(BIN)/python -m pytest tests/spark/test_declarative.py

# The provider for Airflow, in an environment of its own, of a third of a gigabyte.
airflow: $(VENV)/airflow.made
	$(VENV)/airflow/bin/python -m pytest tests/airflow

$(VENV)/airflow.made: setup.cfg
	$(PYTHON) -m venv $(VENV)/airflow
	$(VENV)/airflow/bin/python -m pip install --disable-pip-version-check --quiet --editable '.[airflow]' \
		'pytest>=8,<10' 'pytest-benchmark>=5,<6' 'hypothesis>=6.115,<7'
	touch $@

lint: $(VENV)/test.installed
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

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
	cd dist/unpacked && PYTHONPATH=$(CURDIR)/dist/unpacked $(CURDIR)/$(BIN)/python -m pytest $(FOUR) --dist loadfile \
		$(UNPACKED) $(LONG:%=--ignore=%)
	rm -rf dist/unpacked

# Two environments of a gigabyte: the versions of the lower bounds in setup.cfg, and the newest below the upper ones.
bounds: $(VENV)/bounds-lowest-direct.tested $(VENV)/bounds-highest.tested

$(VENV)/bounds-%.tested: $(VENV)/release.installed
	rm -rf $(VENV)/bounds-$*
	$(RELEASE)/uv venv --quiet --python $(PYTHON) $(VENV)/bounds-$*
	$(RELEASE)/uv pip install --quiet --python $(VENV)/bounds-$* --resolution $* --editable '.[test]'
	$(VENV)/bounds-$*/bin/python -m pytest $(TWO) --dist loadfile $(BOUNDS)

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
