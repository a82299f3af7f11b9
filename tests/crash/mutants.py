# ruff: noqa: E501
"""Bugs planted on purpose, one at a time: a test tool that misses one of them proves nothing.

Each bug is a replacement of text in one module. ``python -m tests.crash mutants`` runs a campaign with each bug, in a
process of its own, until it finds a violation. ``where`` names the campaign: random programs, with failing calls, of
one style, or both. It may also be a test, by its path and name, which finds the bug without chance.

The files of the package stay as they are. In the process and in its children, an importer gives the changed text of
that one module to Python. So nothing is copied, and nothing but that module is compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import persistentqueue

from .explorer import STYLES
from .misuse import MISUSE
from .pipelines import PIPELINES
from .retries import RETRIES
from .several import SEVERAL
from .workers import WORKERS

PACKAGE = Path(persistentqueue.__file__).parent
ROOT = Path(__file__).parent.parent.parent

_IMPORTER = """
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location


class Planted(SourceFileLoader):
    def get_code(self, fullname):  # not what Python has compiled of the module without the bug
        return self.source_to_code(TEXT.encode(), self.path)

    def get_source(self, fullname):
        return TEXT


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return spec_from_file_location(name, PATH, loader=Planted(name, PATH)) if name == NAME else None


sys.meta_path.insert(0, Finder)
"""
"""The module ``sitecustomize``, which each Python imports at its start, behind the values of its three constants."""

_BLUNDERS = ("TypeError", "NameError", "UnboundLocalError", "AttributeError", "ImportError", "SyntaxError")
"""Errors that a planted text causes only if it makes no sense in its place: then no bug was caught."""
_REPEATS = "20"
"""Runs of each program that uses the library wrongly; the first one that finds the bug is the last."""


IDENTITIES = "tests/misuse/test_identities.py"
COPIES = "tests/misuse/test_copied_locations.py"
LOCATIONS = "tests/misuse/test_location_repair.py"
SESSIONS = "tests/misuse/test_sessions.py"
LANE = "tests/unit/core/test_availability.py"
INTERRUPTS = "tests/misuse/test_interrupts.py"
SHIELD = "tests/unit/interrupts/test_signal_shield.py"
FUTURES = "tests/unit/runtime/test_ticket_futures.py"
PIPELINE = "tests/unit/runtime/test_pipeline.py"


class Mutant(NamedTuple):
    """A bug: in the module ``room``, the text ``old`` becomes ``new``. The hunt for a rare one begins with seed
    ``first``."""

    name: str
    room: str
    old: str
    new: str
    where: str = "random"
    first: int = 0


class Verdict(NamedTuple):
    """Result of a hunt: if the mutant was caught, the number of schedules reported until then, the violation, and the
    seed that found it. A mutant that takes many schedules gets that seed as its ``first``."""

    mutant: Mutant
    caught: bool
    schedules: int
    how: str
    seed: int | None = None


MUTANTS = (
    # --- syncs that are missing, in the commit
    Mutant("large blocks are not synced", "engine/commit", "            self._segments.sync()\n", "            pass\n"),
    Mutant("new segments are not synced", "engine/commit", "            self._segments.sync_new()\n", "            pass\n", "random", 6),
    Mutant("new names are not synced with large blocks", "storage/segment_files", "        self.sync_new()\n", "        pass\n"),
    Mutant("a cut segment is continued behind the end of its file", "storage/segment_files", "        segment.capacity_bytes = min(segment.capacity_bytes, self.file_bytes(info.number) - HEADER_BYTES)\n", "", "tests/unit/engine/test_admission.py::test_a_full_queue_is_emptied_behind_a_refusal"),
    Mutant("names of segments are not synced", "storage/segment_files", "            sync_names()\n        self.syncs", "            pass\n        self.syncs"),
    Mutant("only the current segment is synced", "storage/segment_files", "for segment in self._open.values() if segment.dirty]", "for segment in [self.current] if segment]"),
    Mutant("a sync of a segment does nothing", "storage/segment", "        self._disk.fdatasync(self._fd)\n", "        pass\n"),
    Mutant("the write of a frame is not durable", "storage/log", "DSYNC if header.flags & SYNCED else 0", "0", "random", 4),
    Mutant("the direct write of a frame is not durable", "storage/log", "length_bytes, offset, DSYNC)", "length_bytes, offset, 0)"),
    # --- syncs that are missing, in the trim and the opening
    Mutant("a trim does not sync the segments", "engine/trim", "            self._segments.sync()\n", "            pass\n"),
    Mutant("a trim forgets deferred blocks", "engine/trim", "            self._segments.write()\n", "            pass\n"),
    Mutant("a generation is not synced", "storage/log", "        self._disk.fdatasync(self._fd)\n", "        pass\n"),
    Mutant("the name of a generation is not synced", "storage/log", "            sync_names()\n", "            pass\n"),
    Mutant("a generation is named before it is synced", "storage/log", '            self._disk.fdatasync(self._fd)\n            self._disk.failpoint("trim.4 rename generation")\n', '            self._disk.rename(spare, self.path)\n            self._disk.fdatasync(self._fd)\n            spare = self.path\n'),
    Mutant("what recovery read is not made durable", "recovery/opening", "    store.trim(keep_old=bool(doubtful))\n", "    pass\n", "random", 15),
    Mutant("an older generation goes before the name of the next is durable", "recovery/opening", "        sync_directory(disk, places.path(LOG_DIRECTORY))\n", "        pass\n", "random", 19),
    Mutant("directories that a killed owner made are not synced", "recovery/opening", "            sync_names(disk, path)\n", "            pass\n"),
    Mutant("what an unsynced queue left in the cache stays there", "recovery/opening", "    if not replay.synced:\n", "    if False:\n", "random", 26),
    Mutant("a spare is not asked for its other names", "storage/pool", "st_nlink <= 1:", "st_nlink <= 9:", "random", 8),
    # --- order
    Mutant("the log is recycled before the next one is there", "engine/trim", "        number = self._last_frame if old is None else old.number\n", "        number = self._last_frame if old is None else old.number\n        spare = self.spare.path\n        if old_path is not None:\n            self._disk.rename(old_path, spare)\n            old_path = None\n"),
    Mutant("segments are deleted before the checkpoint that lets go of them", "engine/trim", '        number = self._last_frame if old is None else old.number\n', '        number = self._last_frame if old is None else old.number\n        for n in drained:\n            self._segments.delete(n)\n'),
    # --- checks
    Mutant("frames are not checked", "core/frame", "    if found != checksum:\n        raise CorruptionError(file, offset, f\"a frame with", "    if False:\n        raise CorruptionError(file, offset, f\"a frame with", "compacts", 125),
    Mutant("bodies of blocks are not checked", "core/block", "    if found != header.body_checksum:\n", "    if False:\n", "drains", 891),
    Mutant("blocks of an unsynced log are not checked", "recovery/replay", "if not replay.synced and not is_written(", "if False and not is_written(", "random", 26),
    Mutant("an unsynced log goes on behind what is lost", "recovery/replay", "            break\n        try:\n            operations", "            continue\n        try:\n            operations", "random", 306),
    Mutant("a repair of an unsynced log takes any block at the place", "recovery/salvage", "if not intact.synced and not _has_blocks(", "if False and not _has_blocks(", "tests/unit/storage/test_log.py::test_block_of_an_older_attempt_cannot_stand_in"),
    Mutant("a repair of an unsynced log drops what is behind the damage", "recovery/salvage", "        if recovered.lost_transactions:\n            raise", "        if False:\n            raise", "tests/unit/recovery/test_repair.py::test_transactions_that_have_lost_their_blocks"),
    Mutant("a repair ties a queue to segments that only its caller names", "recovery/location_repair", " != [] or are_there:", " != []:", "tests/unit/recovery/test_repair.py::test_a_repair_believes_the_location_that_it_is_told"),
    Mutant("markers make room when items are consumed", "storage/inbox_limits", "if asked + empty <= most < asked + marked:", "if False:", "tests/unit/engine/test_admission.py::test_markers_that_leave_no_room"),
    Mutant("nothing stands behind the last frame", "storage/log", "        frame = b\"\".join((header, body, END))\n", "        frame = b\"\".join((header, body))\n", "tests/unit/recovery/test_replay.py::test_recycled_log_hides_its_former_life"),
    # --- blocks at the wrong place
    Mutant("deferred blocks take no room", "storage/segment", "        self.deferred_bytes += length_bytes\n        self.end += length_bytes\n", "        self.deferred_bytes += length_bytes\n"),
    Mutant("deferred blocks are dropped by the next write", "storage/segment", '[b"".join(self._deferred[1]), *blocks]', "[bytes(self.deferred_bytes), *blocks]"),
    Mutant("the tail of a page is forgotten", "storage/log", "            memory[:next_at] = bytes(memory[next_offset - next_at - start : next_offset - start])\n", "            pass\n", "random", 33),
    Mutant("redone blocks are shifted", "storage/segment_files", ".redo(offset, run)", ".redo(offset + 1, run)"),
    Mutant("a drained segment with blocks of a lost frame is deleted", "recovery/replay", "if doubtful and number in state.drained and", "if False and", "tests/unit/recovery/test_replay.py::test_a_drained_segment_of_a_torn_log_is_set_aside"),
    Mutant("redo is skipped", "recovery/replay", "                self.redo.append(operation)\n", "                pass\n"),
    Mutant("spilled blocks count as inline", "engine/commit", "may_defer and not was_spilled and", "may_defer and", "random", 10),
    # --- files that are given back too early
    Mutant("a trim writes the whole of a longer log", "engine/trim", "max(min(self._wanted_bytes, self._spare_bytes), self._needed_bytes)", "self._wanted_bytes", "tests/unit/engine/test_trim.py"),
    Mutant("a log is doubled before its trims have paid", "engine/trim", "            if self._turns and self._turns * _BYTES_PER_TURN >= self.log.capacity_bytes:\n", "            if self._turns:\n", "tests/unit/engine/test_trim.py"),
    Mutant("the memory of the log before is taken over as it is", "storage/log", "            memory[: old._dirty_bytes] = bytes(old._dirty_bytes)\n", "", "tests/unit/engine/test_trim.py"),
    Mutant("a spare never grows", "engine/store", "            if self.generations.growth_bytes:\n", "            if False:\n", "tests/unit/engine/test_trim.py"),
    Mutant("a file with several names is cut", "system/files", "            if found.st_nlink == 1:\n                for", "            if found.st_nlink:\n                for", "tests/unit/system/test_files.py"),
    Mutant("the segments of open sessions are retired", "engine/trim", "            kept = self._segments.pinned\n", "            kept: set[int] = set()\n", "compacts", 36),
    Mutant("spilled segments are not held", "engine/store", "            self.segments.pin_pieces(transaction.staged)\n", "            pass\n", "compacts", 36),
    Mutant("the segment that is written on is retired", "engine/trim", "if n not in kept and (current is None or n != current.number)]", "if n not in self._segments._pins]", "drains", 24),
    Mutant("a segment drains one item early", "core/state", "            if segment.live == 0:\n                self.drained.add", "            if segment.live <= 1:\n                self.drained.add"),
    Mutant("the oldest generation is read", "recovery/replay", "log_name(generations[-1])", "log_name(generations[0])"),
    Mutant("live segments are swept", "recovery/replay", "number not in known:", "number in known:"),
    Mutant("segments that sessions wrote ahead go on a full disk", "storage/segment_files", "if created.number not in pinned]\n        for created", "]\n        for created", "tests/unit/engine/test_admission.py::test_what_was_spilled_is_no_room"),
    # --- owners and deletion
    Mutant("a second owner is let in", "storage/lock", "if self._disk.lock(fd) and self._is_named(fd)", "if self._is_named(fd)"),
    Mutant("a queue in use can be deleted", "recovery/catalog", "    lock.acquire(lock_timeout)\n", "    pass\n"),
    Mutant("what is being deleted is opened", "storage/relocation", "finish_deletion(disk, places) if DELETED_DIRECTORY in names else places", "places", "random", 19),
    Mutant("segments are deleted before it is durable that they may", "storage/layout", "    sync_directory(disk, directory)\n    disk.failpoint(\"delete.3", "    disk.failpoint(\"delete.3", "random", 7),
    Mutant("the log may be gone before its segments are", "storage/layout", "    sync_directory(disk, directory)\n    _sweep(disk, join(directory, DELETED", "    _sweep(disk, join(directory, DELETED", "random", 44),
    # --- contents of a checkpoint and of a frame
    Mutant("a checkpoint forgets what was consumed out of order", "core/state", "            self.gone.consumed.runs(),\n", "            [],\n"),
    Mutant("a checkpoint forgets the frontier", "core/state", "            self.gone.frontier,\n            self.gone.consumed.runs()", "            0,\n            self.gone.consumed.runs()"),
    Mutant("a checkpoint forgets the markers", "core/state", "            markers,\n        )\n", "            [],\n        )\n"),
    Mutant("numbers of segments begin again", "core/state", "state.next_segment = checkpoint.next_segment", "state.next_segment = 1"),
    Mutant("markers are not logged", "engine/commit", "                operations.append(MarkerSet(*transaction.marker))\n", "                pass\n"),
    Mutant("markers are not asked", "engine/commit", "if recorded is not None and version <= recorded:", "if False:", "random", 10),
    Mutant("new segments are not logged", "engine/commit", "list(self._segments.unlogged)", "[]"),
    Mutant("the short way logs one item less", "engine/commit", "encode_lone_dequeue(subscription, first, count, 1)", "encode_lone_dequeue(subscription, first, max(count - 1, 1), 1)"),
    Mutant("a run is joined to one that it does not touch", "engine/commit", "(last.subscription, last.first + last.count) == (subscription, first):", "(last.subscription, last.first + last.count) <= (subscription, first):", "random", 38),
    # --- items that were handed out
    Mutant("a rollback keeps what it held", "engine/store", "                transaction.ready.release(transaction.runs)\n", "                pass\n"),
    Mutant("what was consumed out of order comes again", "core/availability", "self._behind = cursor.count + self.returned.size", "self._behind = cursor.count"),
    # --- compaction
    Mutant("what a compaction copied is not synced", "engine/compaction", "            self.target.sync()\n", "            pass\n", "compacts"),
    Mutant("the name of what was copied to is not synced", "engine/compaction", "            sync_directory(self._disk, self._segments.directory)\n", "            pass\n", "compacts"),
    Mutant("what was consumed since it was copied comes back", "core/state", "        live = self.gone.live_between(first, end)\n        if live > copied:", "        live = copied\n        if live > copied:", "compacts", 125),
    Mutant("a source that was not copied whole is given up", "engine/compaction", "Compaction(self.done, ", "Compaction(self.done + [info.number for info in self._left], ", "compacts", 19),
    Mutant("what was copied to is deleted after the commit", "engine/compaction", "if is_known and not is_committed:\n", "if is_known:\n", "compacts"),
    # --- pool
    Mutant("a file that has other names is wiped", "system/files", "found.st_size if found.st_nlink == 1 else 0", "found.st_size", "recycles", 6),
    Mutant("what is taken from the pool keeps its old header", "storage/segment", "            segment.write_header()\n        except", "            segment.dirty = True\n            if not recycled:\n                segment.write_header()\n        except", "recycles"),
    Mutant("a segment goes to the pool before its checkpoint is durable", "engine/trim", "        number = self._last_frame if old is None else old.number\n", "        number = self._last_frame if old is None else old.number\n        for n in drained:\n            self._segments._pool.give(self._segments.path(n))\n", "recycles"),
    # --- segments elsewhere
    Mutant("what was copied to another place is not synced", "system/bad_pages", "            meter.advance(len(data))\n        disk.fdatasync(target)\n", "            meter.advance(len(data))\n", "moves"),
    Mutant("the names of what was copied are not synced", "storage/relocation", "    sync_directory(disk, target)\n", "    pass\n", "moves"),
    Mutant("the old place is swept before the switch", "storage/relocation", "        moved = _switched(", "        sweep_place(disk, places.data_root)\n        moved = _switched(", "moves"),
    Mutant("what a move has left is swept before its switch is durable", "storage/relocation", "    sync_directory(disk, places.directory)\n    kept", "    kept", "moves", 40145),
    Mutant("what a move leaves is not recorded", "storage/relocation", "_switched(places, target, places.place)", "_switched(places, target)", "moves"),
    Mutant("a missing place is made", "storage/locations", "        if found is None or found[0] != places.place.id:\n", "        if False:\n", "moves"),
    # --- limits
    # --- the inbox
    Mutant("what is published is not synced", "storage/publication", "        disk.fdatasync(self._fd)\n", "        pass\n", "publishes"),
    Mutant("the name of what is published is not synced", "storage/publication", "            sync_names()\n", "            pass\n", "publishes"),
    Mutant("adopted before its name is durable", "engine/adoption", "        self._inbox.sync()\n", "        pass\n", "publishes", 249),
    Mutant("the names of adopted segments are not synced", "storage/segment_files", "        if self.new or self.has_adopted:\n", "        if self.new:\n", "publishes"),
    Mutant("what was adopted is not renamed by recovery", "recovery/opening", "    finish_adoptions(disk, places, recovered)\n", "    pass\n", "publishes"),
    Mutant("recovery forgets that adopted names may be lost", "recovery/opening", "    store.segments.has_adopted = bool(recovered.adoptions)\n", "    pass\n", "publishes"),
    Mutant("an adoption that is lost loses what was published", "recovery/replay", "                    orphans[number] = read_publication(disk, places.path(path))\n", "                    recovered.sweep.append(path)\n", "publishes", 2),
    Mutant("what was adopted loses its end", "recovery/opening", "store.state.segments.values() if row.number not in recovered.adoptions", "store.state.segments.values()", "publishes", 32),
    Mutant("what was skipped goes before its marker is durable", "engine/adoption", "if dropped and not self._sync:", "if False:", "publishes", 26),
    Mutant("what was skipped is adopted", "engine/adoption", "        group = [each for each in group if not each.skipped]\n", "", "publishes"),
    Mutant("adopted in the order of the directory", "engine/inbox", "            name for name in sorted(found)", "            name for name in reversed(list(found))", "publishes"),
    Mutant("gone when the first one has it", "core/state", "            self._let_go(self._done_by_all(Intervals([(first, count)])))\n", "            self._let_go(Intervals([(first, count)]))\n", "subscribes"),
    Mutant("a checkpoint forgets what only some have consumed", "core/state", "            operations += dequeues(number, cursor.consumed.common(needed).runs())\n", "            pass\n", "subscribes", 56),
    Mutant("a checkpoint forgets how far a subscription is", "core/state", "SubscriptionOpened(number, cursor.frontier, cursor.name) for", "SubscriptionOpened(number, self.gone.frontier, cursor.name) for", "subscribes"),
    Mutant("a checkpoint forgets that there is no plain queue", "core/state", "            return [SubscriptionClosed(0), *rest]\n", "            return rest\n", "subscribes", 6),
    Mutant("what only a removed one kept stays", "core/state", "            self._let_go(self._done_by_all(cursor.rest(self.gone.frontier, self.next_sequence)))\n", "            pass\n", "subscribes", 19),
    Mutant("a new one shares what is gone", "core/state", "        if others == 1:\n            self.gone = self.gone.copy()\n", "        if others == 1:\n            pass\n", "subscribes"),
    Mutant("what is dequeued is the plain queue's", "engine/commit", "consumed, last = dequeues(subscription, transaction.runs)", "consumed, last = dequeues(0, transaction.runs)", "subscribes"),
    Mutant("a request comes again", "engine/inbox", "            # that a session has held.\n            self.sync()\n", "            pass\n", "tests/durability/test_campaigns.py::test_request_that_was_answered_never_comes_again"),
    Mutant("a request comes again whose owner was killed", "recovery/opening", "    store.inbox.sync()", "    pass", "tests/durability/test_campaigns.py::test_request_that_was_answered_never_comes_again"),
    Mutant("a request is answered before what was published before it", "engine/inbox", "            if transactions and not _are_alike(transactions[-1].request, publication.request):\n                break  # the answer to a request depends on what is before it\n", "", "subscribes"),
    Mutant("what is acknowledged is all there is", "core/availability", "        ahead = min(end, self._state.next_sequence) - self.position\n", "        ahead = self._state.next_sequence - self.position\n", "subscribes", 18),
    Mutant("runs of two subscriptions are one", "engine/commit", "                    if transaction.ready is not first.ready:\n                        return False\n", "", "tests/durability/test_campaigns.py::test_group_of_two_subscriptions"),
    Mutant("parts go before the manifest that was skipped", "engine/inbox", "                with suppress(OSError):  # a file that stays is skipped again\n", "                for name in filter(is_part, names):\n                    self._disk.unlink(self.path(name))\n                with suppress(OSError):\n", "publishes", 14),
    Mutant("parts go before it is durable that their manifest has gone", "engine/inbox", "            with suppress(OSError):  # parts that stay are swept later\n                self.sync()\n", "            with suppress(OSError):\n", "publishes", 43),
    Mutant("a manifest stays in the inbox", "storage/publication", "(*self.parts, self.own) if self.parts or", "self.parts or (self.own,) if self.parts or", "publishes"),
    Mutant("parts are not taken back", "engine/inbox", "for is_its_turn in (is_part, is_published):", "for is_its_turn in (is_published,):", "publishes", 2),
    Mutant("files may outgrow their limit", "system/quota", "            if end > file.size_bytes:\n                return self._grow(", "            if False:\n                return self._grow(", "random", 27),
    # --- several queues
    Mutant("what is prepared is not durable when it is decided", "engine/two_phase", "        store.write_frame(half.written)\n", "        log = store.generations.log\n        kept = log._flags, log._direct\n        if half.settling is not None:\n            log._flags, log._direct = 0, None\n        store.write_frame(half.written)\n        log._flags, log._direct = kept\n", "several"),
    Mutant("a coordinator is believed that may be in the page cache only", "recovery/opening", "    settings = Settings(log_bytes=PAGE_BYTES, wipe=True, trust=trust, network_disk=True)\n", "    settings = Settings(log_bytes=PAGE_BYTES, wipe=True, trust=trust, network_disk=True)\n    return True\n", "several"),
    Mutant("what a coordinator gives back is not wiped", "recovery/opening", "Settings(log_bytes=PAGE_BYTES, wipe=True, trust=trust, network_disk=True)", "Settings(log_bytes=PAGE_BYTES, trust=trust, network_disk=True)", "several", 27),
    Mutant("a coordinator is opened as the asker is", "recovery/opening", "Settings(log_bytes=PAGE_BYTES, wipe=True, trust=trust, network_disk=True)", "Settings(log_bytes=PAGE_BYTES, wipe=True, trust=trust, network_disk=True, fan_out=True)", "several"),
    Mutant("nobody says that nothing was decided", "recovery/in_doubt", "    return False if is_sound and newest.last_number == prepare.number - 1 else None\n", "    return None\n", "several faults", 16),
    Mutant("a decision is never forgotten", "recovery/in_doubt", "        if newest is not None and not any(", "        if False and not any(", "several"),
    Mutant("a decision is never forgotten for who is gone", "recovery/in_doubt", "        if find_unsettled(disk, directory, disk.listdir(neighbours)) is None:\n", "        if False:\n", "several", 424),
    Mutant("an owned log is believed to its last frame", "recovery/in_doubt", "is_sound or at + 1 < len(newest.frames)", "True", "several faults", 180),
    Mutant("the name of a neighbour's log is not made durable", "storage/log_reader", "            sync_directory(disk, path)", "            pass", "several", 1003),
    Mutant("a resolution is not logged", "engine/trim", "        return [Resolution(settling.transaction, settling.committed)]\n", "        return []\n", "several", 3),
    Mutant("a decision is forgotten by a checkpoint", "core/state", "            return rest\n", "            return rest[:1]\n", "several"),
    Mutant("a decision is forgotten by an opening", "recovery/in_doubt", " and not any(each.transaction == transaction for each in _unsettled(newest)):", ":", "several"),
    Mutant("a decision is looked for behind the checkpoint only", "recovery/in_doubt", "    if newest.frames[0].number >= prepare.number:\n", "    if True:\n", "several", 4),
    Mutant("a decision takes the place of all before it", "core/state", "                self.forget(self.asked_for[name], name)\n", "                self.decisions.clear()\n", "several", 89),
    Mutant("a decision is forgotten that a power cut brings back to mind", "recovery/in_doubt", "newest.frames[-2:]", "newest.frames[-1:]", "several", 435),
    Mutant("what is in doubt is cut off before it is settled", "recovery/opening", "    if not doubtful and not was_in_doubt:\n", "    if not doubtful:\n", "tests/unit/recovery/test_in_doubt.py::test_check_finds_nothing_in_a_cut_short_opening"),
    Mutant("a view counts what is only prepared", "recovery/in_doubt", "    return True if newest is not None and _verdict(newest, prepare, True) else None\n", "    return True\n", "tests/unit/interprocess/test_snapshot_view.py::test_a_transaction_in_doubt_is_asked_for"),
    Mutant("a view looks for a decision once", "interprocess/splits", "may_be_decided = recovered.prepared is not None and self._decide is not None\n", "may_be_decided = False\n", "tests/unit/interprocess/test_snapshot_view.py::test_a_view_sees_the_decision_behind_the_prepare"),
    Mutant("what was aborted counts", "core/state", "                if first.committed:\n", "                if True:\n", "several faults", 5116),
    Mutant("what is in doubt counts", "recovery/opening", "lambda prepare: ask(disk, directory, prepare, recover_other, is_sound)", "lambda _: True", "several"),
    Mutant("what is in doubt is dropped", "recovery/opening", "lambda prepare: ask(disk, directory, prepare, recover_other, is_sound)", "lambda _: False", "several"),
    Mutant("the first listing of the logs is believed", "storage/log_reader", "        if found or not _has_lock(disk, directory):\n", "        if True:\n", "several", 3000171),
    Mutant("segments without a log are damage at first sight", "storage/layout", "    for _ in range(LISTINGS_MAX - 1):\n", "    for _ in range(0):\n", "tests/unit/storage/test_layout.py::test_a_listing_that_misses_the_creation_of_a_queue"),
    Mutant("an opening makes the queue that was deleted during the wait", "recovery/opening", "            if not create and not find_generations(own, directory):", "            if False and not find_generations(own, directory):", "tests/unit/recovery/test_opening.py::test_deleted_beside_a_foreign_file"),
    Mutant("a repair makes the queue that was deleted during the wait", "recovery/check", "        if not _has_files(taken.lock.disk, taken.places):", "        if False:", "tests/unit/recovery/test_opening.py::test_deleted_with_its_directory"),
    Mutant("a queue is deleted that another has to ask", "recovery/catalog", "            refuse_unsettled(held, directory, \"is not deleted\", \"delete\")\n", "            pass\n", "several", 4),
    Mutant("the short way forgets what is to be settled", "engine/store", "if self.generations.settling is not None:\n                self.shielded(partial(self._commit_long, group))\n            elif not self.committer", "if not self.committer", "several", 55),
    Mutant("the segment of an aborted part goes before the resolution", "engine/store", "                if self._names_unlogged():  # first", "                if False:  # first", "tests/unit/engine/test_two_phase.py::test_the_segment_of_an_aborted_part_goes_behind_the_resolution"),
    Mutant("a rollback deletes the segment of an aborted part before the resolution", "engine/store", "        if not self._names_unlogged():\n            dropped", "        if True:\n            dropped", "tests/unit/engine/test_two_phase.py::test_the_segment_of_an_aborted_part_goes_behind_the_resolution"),
    Mutant("an aborted part is taken for committed", "engine/two_phase", "            settling.committed = False\n", "            settling.committed = True\n", "several faults", 5116),
    # --- items that fail
    Mutant("a delivery is not logged", "runtime/retries", "                open_queue.commit(delivery)\n", "                pass\n", "retries"),
    Mutant("a delivery is in memory before it is durable", "runtime/retries", "                    open_queue.commit(delivery)\n", "                    for operation in delivery.operations:\n                        open_queue._store.state.apply(operation)\n", "retries"),
    Mutant("a checkpoint forgets deliveries", "core/state", "            rest += [Delivered(number, *run) for run in attempts.times]\n", "            pass\n", "retries"),
    Mutant("a checkpoint forgets delays", "core/state", "            rest += [Delayed(number, first, count, *delay) for first, count, delay in attempts.delays]\n", "            pass\n", "retries"),
    Mutant("a delivery does not end a delay", "core/delivery_counts", "        self.delays.drop(first, count)\n\n    def delay", "\n    def delay", "retries"),
    Mutant("what is given up is there before it is gone from here", "runtime/retries", "        commit_jointly([(self.open_queue, work), (self.dead, grave)])\n", "        self.dead.commit(grave)\n        self.open_queue.commit(work)\n", "retries"),
    Mutant("what is rejected for good has a transaction of its own", "runtime/retries", "            commit_jointly(busy, timeout_seconds)\n", "            for work in busy:\n                commit_jointly([work], timeout_seconds)\n", "retries", 2),
    Mutant("what is taken back is consumed later", "runtime/retries", "            commit_jointly([(open_queue, into), (dead, out)])\n", "            open_queue.commit(into)\n            dead.commit(out)\n", "retries"),
    Mutant("a delay is not logged", "runtime/retries", "            retries.open_queue.commit(note)\n", "            pass\n", "retries"),
    Mutant("an opening forgets what is delayed", "engine/reader", "            if left_ns > 0:\n", "            if False:\n", "retries"),
    # --- envelopes
    Mutant("a grandchild uses the nonces of its grandparent", "core/encryption", "self._source.getpid(), self._source.forks()", "self._source.getpid(), 0", "tests/api/test_encryption.py::test_a_forked_child_draws_a_salt_of_its_own"),
    Mutant("one key opens all blocks", "core/encryption", "            key = self._keys.get(key_id)\n", "            key = next(iter(self._keys.values()), None)\n", "encloses"),
    Mutant("what is compressed is not said to be", "core/encryption", "flags, content = flags | COMPRESSED, compressed", "content = compressed", "encloses"),
    # --- interruptions
    Mutant("half a change of the state stays", "engine/commit", "        self._rebuild()\n", "        pass\n", f"{INTERRUPTS}::test_row_04_interrupted_everywhere_a_flush_is_finished_or_undone"),
    Mutant("a frame that was interrupted is not written again", "storage/log", "        if self.number == before:\n", "        if False:\n", f"{INTERRUPTS}::test_row_04_interrupted_everywhere_a_flush_is_finished_or_undone"),
    Mutant("what was taken and not returned stays on hold", "runtime/session_state", "                    self._release(transaction, count_of(transaction.runs) - transaction.given)\n", "                    pass\n", f"{INTERRUPTS}::test_row_03_interrupted_everywhere_nothing_is_on_hold"),
    Mutant("an item counts as given before it is decoded", "session", "            if self._codec is not None:\n                item = self._decoded([item])[0]\n", "            transaction.given += 1\n            if self._codec is not None:\n                item = self._decoded([item])[0]\n            transaction.given -= 1\n", f"{INTERRUPTS}::test_row_03_interrupted_everywhere_nothing_is_on_hold"),
    Mutant("a bad item that its caller got is given back later", "workers/worker_session", "stays on hold\n            self._given += 1\n            self._busy = FREE\n            raise\n        except BaseException:\n            self._busy = TORN\n            self._end_badly()\n            raise\n        return items[0]", "stays on hold\n            self._busy = FREE\n            raise\n        except BaseException:\n            self._busy = TORN\n            self._end_badly()\n            raise\n        return items[0]", f"{INTERRUPTS}::test_rows_03_and_04_interrupted_workers"),
    Mutant("a commit that cannot be completed goes on", "engine/store", " or self.broken is not None or self.committer.is_unfinished:\n", " or self.broken is not None:\n", f"{INTERRUPTS}::test_row_03_a_call_that_finds_the_stack_full"),
    Mutant("who is interrupted keeps the place of a waiter", "runtime/waiting", "            surely(partial(self._leave, place, passes=True))\n", "            pass\n", f"{SESSIONS}::test_row_03_a_waiting_consumer_is_interrupted"),
    Mutant("a handler of the program raises in the middle", "interrupts/signal_shield", "    return _HARMLESS.issuperset(map(id, map(_handler_of, _OTHERS)))\n", "    return True\n", f"{SHIELD}::test_with_a_handler_of_the_program_another_thread_makes_the_call"),
    Mutant("a postponed signal is forgotten", "interrupts/signal_shield", "        if postponed.has_come:\n", "        if False:\n", f"{SHIELD}::test_ctrl_c_is_postponed"),
    Mutant("Ctrl-C raises in the middle", "interrupts/signal_shield", "    _set_handler(_CTRL_C, postponed)\n", "    pass\n", f"{INTERRUPTS}::test_row_03_interrupted_everywhere_nothing_is_on_hold"),
    Mutant("a forked child has no Ctrl-C", "interrupts/signal_shield", "    if is_postponing():\n        _set_handler", "    if False:\n        _set_handler", f"{SHIELD}::test_a_child_that_is_forked_meanwhile_can_be_interrupted"),
    Mutant("an opening that is interrupted keeps the lock", "runtime/open_queue", "                self.shielded(self._store.close)\n", "                pass\n", f"{INTERRUPTS}::test_row_03_interrupted_everywhere_nothing_is_on_hold"),
    Mutant("a copied directory counts as one that was only opened after a power cut", "storage/lock", "return recorded != inode and", "return False and", f"{IDENTITIES}::test_a_copy_never_uses_the_segments_of_its_original"),
    Mutant("a lock that a power cut has emptied counts as that of a copy", "storage/lock", "recorded != inode and _INODE.fullmatch(str(recorded)) is not None", "recorded != inode", "tests/unit/storage/test_locations.py::test_move_interrupted_at_every_call"),
    Mutant("a frame is written that the state refuses", "engine/commit", "            if (transaction.runs or transaction.operations) and not self._is_valid(transaction, consumed):\n", "            if False:\n", f"{SESSIONS}::test_row_01_no_frame_is_written_that_the_state_would_refuse"),
    Mutant("what an invalid transaction says that it holds comes back", "engine/store", "transaction.ready is not None and not transaction.is_invalid:", "transaction.ready is not None:", f"{SESSIONS}::test_row_01_an_invalid_transaction_changes_nothing"),
    Mutant("a list of items ends where its first page does", "engine/reader", "if page is not None and end <= page.end:", "if page is not None:", "tests/api/test_queue.py::test_a_list_has_items_of_several_pages"),
    # --- the lane
    Mutant("what comes back waits behind the lane", "core/availability", "in its old order.\"\"\"\n        self.recall()\n", "in its old order.\"\"\"\n", f"{LANE}::test_what_comes_back_comes_first"),
    Mutant("what is taken at once comes before the lane", "core/availability", "        if self.lane or self._recalled:\n            self.recall()\n        runs = [] if", "        runs = [] if", f"{LANE}::test_whoever_looks_or_takes_sees_the_lane"),
    Mutant("a subscription that is removed keeps its lane", "core/availability", "        self.is_closed = True\n        self.recall()\n", "        self.is_closed = True\n", f"{LANE}::test_a_subscription_that_goes_takes_its_lane_along"),
    Mutant("what others took in between is consumed", "runtime/session_state", "            if taken[-1][0] >= first + count:", "            if False:", f"{LANE}::test_sessions_that_take_turns"),
    Mutant("a flush forgets what came from the lane", "session", "            if self._taken:\n                self._note(transaction)\n            self._queue_commit(", "            self._queue_commit(", f"{LANE}::test_items_come_once_and_in_order"),
    Mutant("what is in memory is delivered without a note", "engine/reader", "        self.counted = ready\n\n    def _first_page(self)", "        self.counted = ready\n\n    def _first_page_of_none(self)", "tests/unit/runtime/test_retries.py::test_no_short_way_passes_by_the_count"),
    Mutant("what leaves the lane is noted a step later", "session", "                    next(self._takes)\n", "                    taken.append(self._lane.popleft())\n", f"{INTERRUPTS}::test_row_03_a_dequeue_that_is_interrupted_anywhere_holds_nothing"),
    Mutant("what a handler raises is the end of the lane", "runtime/session_state", "    if error.__traceback__ is not None and error.__traceback__.tb_next is not None:\n        raise error\n", "", f"{LANE}::test_a_handler_that_raises_index_error_ends_the_call"),
    # --- flushes that are not waited for
    Mutant("a flush behind a failed one is committed", "runtime/pipeline", "            if self._failure is not None:\n                behind", "            if False:\n                behind", f"{PIPELINE}::test_what_is_refused_is_tried_one_by_one"),
    Mutant("flushes that were refused together are repeated from the last one", "runtime/pipeline", "for each in reversed(lot))", "for each in lot)", f"{PIPELINE}::test_what_is_refused_is_tried_one_by_one"),
    Mutant("a ticket is done before its flush", "runtime/pipeline", "        error = self._commit(merged, 0.0)\n", "        for each in lot:\n            _succeed(each.ticket, True)\n        error = self._commit(merged, 0.0)\n", f"{PIPELINE}::test_an_unknown_outcome_is_that_of_all_that_were_merged"),
    Mutant("a ticket whose lock is made behind its end is waited for", "runtime/pipeline", "        parts[\"_state\"] = \"FINISHED\"  # the other", "        pass  # the other", f"{FUTURES}::test_a_ticket_that_nobody_waited_for_has_ended"),
    Mutant("the end of a flush takes the place of a lock", "runtime/pipeline", "    parts[kind] = outcome  # before the end: a thread that finds the end reads it\n", "    parts[kind], parts[\"_lock\"] = outcome, _END\n", f"{FUTURES}::test_a_ticket_that_has_not_ended"),
    Mutant("what a failed flush holds is released before the rollback", "runtime/pipeline", "        self._failed.append(handed.transaction)\n", "        self._discard(handed.transaction)\n", PIPELINES, 11),
    Mutant("merged flushes consume what the first of them has taken", "runtime/pipeline", "            join_runs(self.runs, each.runs)\n", "            join_runs(self.runs, each.runs if each is self._parts[0] else ())\n", PIPELINES, 10),
    Mutant("a flush that is handed over counts twice", "runtime/session_state", "if pipeline is not None else ()) if each is not transaction]\n", "if pipeline is not None else ())]\n", "tests/unit/engine/test_segment_use.py::test_a_flush_that_is_handed_over_meanwhile_counts_once"),
    Mutant("a further look believes a log that was put back", "storage/log_reader", "        if header != read.header or checksum != ", "        if header != read.header and checksum != ", "tests/unit/interprocess/test_further_looks.py::test_a_log_that_is_not_what_was_read"),
    Mutant("a further look changes what an earlier one has found", "recovery/replay", "state=recovered.state.copy()", "state=recovered.state", "tests/unit/interprocess/test_further_looks.py::test_what_was_looked_at_does_not_change"),
    Mutant("a cursor looks for few runs at their ends only", "core/intervals", "any(map(consumed.overlap, firsts, ends))", "any(map(consumed.overlap, firsts, firsts))", "tests/unit/core/test_intervals.py::test_few_runs_far_apart_do_not_pass_all_gaps_between"),
    Mutant("what another subscription needs in part is gone", "core/state", "                done = cursor.done_of(done)\n", "                pass\n", "tests/unit/core/test_state.py::test_consumption_of_what_others_need_in_part"),
    Mutant("many runs that touch are not joined", "core/intervals", "list(map(gt, later, ends))", "list(map(le, ends, later))", "tests/unit/core/test_intervals.py::test_many_runs_at_once"),
    Mutant("merged flushes come in with the last one first", "runtime/pipeline", "            self.items += each.items\n", "            self.items[:0] = each.items\n", PIPELINES),
    # --- large groups
    Mutant("a large group drops bytes that its frame needs", "storage/segment_files", "            if total_bytes > kept_bytes and self._staged", "            if self._staged", "tests/unit/engine/test_commit.py::test_large_groups_are_written_in_parts"),
    Mutant("items of unequal lengths make too large blocks", "core/block", "        fits = part_bytes <= BLOCK_BYTES or most == 1\n", "        fits = True\n", "tests/unit/core/test_formats.py::test_split_items"),
    # --- misuse
    Mutant("an item may be larger than a block can say", "core/items", "    if view.nbytes > ITEM_BYTES_MAX:\n        raise too_large(view.nbytes)\n", "", "misuse"),
    Mutant("a session is for any number of threads", "interrupts/call_guard", "        if self._busy and not self._claims():\n            raise self._in_use()", "        if False:\n            raise self._in_use()", "misuse"),
    Mutant("a marker may be of any type", "core/items", "    if not isinstance(name, str) or not isinstance(version, int) or isinstance(version, bool):", "    if False:", "misuse"),
    Mutant("what a codec refuses is held with all behind it", "codecs/held_items", "                give_back(behind)\n", "                pass\n", "misuse"),
    Mutant("an item behind one that a codec refuses counts as delivered", "codecs/held_items", "                uncount(behind)\n", "                pass\n", "tests/unit/runtime/test_retries.py::test_items_behind_one_that_cannot_be_decoded_are_not_tried"),
    Mutant("a transaction is over anything", "transactions", "        if not isinstance(queue, Consumer):", "        if False:", "misuse"),
    # --- directories that are renamed
    Mutant("an owner goes by the name of its directory", "recovery/opening", "store = Store(own, places", "store = Store(disk, places", "renames"),
    Mutant("what is given back is deleted by its path", "system/directory_handles", "unlink=partial(self._reach, disk.unlink),", "unlink=disk.unlink,", "renames"),
    Mutant("a generation gets its name by its path", "system/directory_handles", "call(self._below(source), self._below(target))", "call(self._below(source), target)", "renames"),
    Mutant("files are opened by their paths", "system/directory_handles", "open=partial(self._reach, disk.open),", "open=disk.open,", "renames"),
    Mutant("an inbox is listed by its path", "system/directory_handles", "listdir=partial(self._reach, disk.listdir),", "listdir=disk.listdir,", "renames"),
    Mutant("a place of segments goes by its name", "storage/locations", "        disk.hold(root)  # the directory", "        pass  # the directory", "renames"),
    Mutant("a shared pool goes by its name", "recovery/opening", "        roots.hold(store.pool.directory)\n", "        pass\n", "renames", 33),
    # --- files that other processes put into an inbox
    Mutant("a producer goes by a relative path", "interprocess/producer", "        self._directory = abspath(queue_directory(path, name))", "        self._directory = queue_directory(path, name)", "tests/misuse/test_inboxes.py::test_row_07_relative_path_of_a_producer"),
    Mutant("holes are bytes", "storage/publication", "        if size_bytes > _HOLES_FACTOR * real_bytes + _HOLES_BYTES:\n", "        if False:\n", "tests/misuse/test_inboxes.py::test_row_10_a_part_of_holes"),
    Mutant("an adoption does not end when the time is over", "runtime/open_queue", "if is_there or not self._store.inbox.is_cut or (deadline is not None and _now() >= deadline):", "if is_there or not self._store.inbox.is_cut:", "tests/misuse/test_inbox_limits.py::test_row_24_a_time_out_ends_the_adoption"),
    Mutant("a producer publishes what its owner can never adopt", "storage/inbox_limits", "whole_bytes += empty_bytes(", "empty_bytes(", "tests/misuse/test_inbox_limits.py::test_row_24_what_never_fits_is_not_published"),
    Mutant("the command line has no limits", "recovery/opening", "if settings.keep_limits:", "if False:", "tests/misuse/test_inbox_limits.py::test_an_opening_can_keep_the_limits"),
    Mutant("a copy is opened with the segments of its original", "storage/relocation", "    _need_left(disk, places, queue)\n    need_own_segments(disk, places, queue, SALVAGE)\n", "    need_own_segments(disk, places, queue, SALVAGE)\n", f"{IDENTITIES}::test_a_copy_never_uses_the_segments_of_its_original"),
    Mutant("a queue takes the segments of a neighbour", "storage/relocation", "    need_own_segments(disk, places, queue, SALVAGE)\n", "", f"{LOCATIONS}::test_records_that_were_exchanged"),
    Mutant("what an opening finds superfluous at the location of another queue is deleted", "recovery/opening", "        recovered.keep_segments()\n", "        pass\n", f"{LOCATIONS}::test_the_location_of_a_renamed_queue_is_not_swept"),
    Mutant("a queue takes the segments of a neighbour that is missing", "storage/relocation", " or (replay is not None and _contradicts(disk, root, replay)):", ":", f"{LOCATIONS}::test_records_that_were_exchanged_while_a_neighbour_is_missing"),
    Mutant("a renamed queue keeps what a killed owner has left", "recovery/opening", "not is_proven(own, places, recovered.replay, recovered.is_strange)", "places.place != OWN", f"{LOCATIONS}::test_what_a_killed_owner_has_left_is_swept_after_a_rename"),
    Mutant("an adoption of a neighbour is repeated", "recovery/replay", "        self.orphans = {}\n", "", f"{LOCATIONS}::test_an_adoption_of_a_neighbour_is_not_repeated"),
    Mutant("repair undoes no exchange that was accepted", "recovery/location_repair", "        _need_none_there(disk, places, str(data_path))\n", "", f"{LOCATIONS}::test_exchanged_records_that_were_accepted"),
    Mutant("a move deletes what is published at its target", "storage/relocation", "            if is_empty(disk, path):\n", "            if True:\n", f"{LOCATIONS}::test_row_23_a_lost_data_path_of_a_queue_without_segments"),
    Mutant("a location has two owners", "storage/relocation", "    if not is_free:  # last", "    if False:  # last", f"{COPIES}::test_a_location_has_one_owner"),
    Mutant("a copy sweeps where its original has moved to", "storage/relocation", "or is_left_here(disk, places.directory, other)", "or True", f"{COPIES}::test_a_copy_from_the_middle_of_a_move"),
    Mutant("the deletion of a copy sweeps where its original has moved to", "storage/layout", " and is_left_here(disk, directory, place)", "", f"{COPIES}::test_a_copy_from_the_middle_of_a_move"),
    Mutant("a location keeps the old name of its queue", "storage/relocation", "(queue, owner) != (abspath(places.directory), inode)", "owner != inode", f"{COPIES}::test_a_renamed_original_keeps_its_segments"),
    Mutant("a medium that is away counts as left", "storage/relocation", "        return bears(disk, place) and not _is_same(", "        return not _is_same(", f"{COPIES}::test_an_original_whose_medium_is_away_has_not_left"),
    Mutant("a producer on a copy publishes for the original", "interprocess/producer", "        need_own_location(disk, places)\n", "", f"{IDENTITIES}::test_a_copy_never_uses_the_segments_of_its_original"),
    Mutant("what waits in the inbox is not limited", "storage/inbox_limits", "if holds + more > most or", "if more > most or", "tests/misuse/test_inbox_limits.py::test_row_24_what_waits_is_limited"),
    Mutant("an interrupted flush is published twice", "interprocess/producer", "        self._draft, self._batch = None, empty  # no call, so no interruption that leaves published items here\n", "        self._draft = None\n        self._batch.clear()\n", "tests/unit/interprocess/test_producer_interrupts.py::test_an_interrupted_flush_leaves_no_items_that_are_published"),
    Mutant("an interrupted spill doubles items", "interprocess/producer", "            shielded(partial(self._move, draft))\n", "            self._move(draft)\n", "tests/unit/interprocess/test_producer_interrupts.py::test_an_interrupted_spill_doubles_nothing"),
    Mutant("a full queue reads very many files for each item", "engine/inbox", "            if count and not fits(count, length_bytes):\n                break\n", "", "tests/unit/engine/test_adoption.py::test_many_files_that_wait_cost_a_full_queue_little"),
    Mutant("a manifest leaves the inbox before its parts", "storage/segment_files", "            has_room = has_room and self._may_rename(", "            has_room = self._may_rename(", "tests/unit/interprocess/test_repeated_parts.py::test_a_part_that_keeps_its_name_is_not_published_again"),
    Mutant("a part that was adopted, and has kept its name, is deleted", "engine/inbox", "parts += [name for name in names if is_part(name) and name not in adopted]", "parts += [name for name in names if is_part(name)]", "tests/unit/interprocess/test_repeated_parts.py::test_parts_that_two_manifests_name_come_once"),
    Mutant("a manifest whose marker was reached is damaged", "engine/inbox", "            if version <= self._state.markers.get(name, -1):\n                return\n", "", "tests/unit/interprocess/test_repeated_parts.py::test_parts_that_two_manifests_name_come_once"),
    Mutant("a deletion leaves its inbox to the producers", "storage/layout", "        disk.rename(inbox, closed)\n", "        pass\n", "tests/unit/storage/test_layout.py::test_delete_beside_a_producer_that_publishes"),
    Mutant("a producer publishes into a queue whose deletion has begun", "interprocess/producer", "if has_left or not self._has_log():", "if has_left:", "tests/unit/storage/test_layout.py::test_a_deletion_that_was_cut_short_leaves_no_queue_for_producers"),
    Mutant("a producer spills without a limit", "interprocess/producer", "        self._bounds.check_ahead(self._inbox, self._buffered, draft.length_bytes if draft is not None else 0)\n", "", "tests/misuse/test_inbox_limits.py::test_what_is_spilled_is_on_the_disk"),
    Mutant("limits of a later opening do not count", "storage/inbox_limits", "fits = limits == self._limits and (", "fits = bool(limits) and (", "tests/misuse/test_inbox_limits.py::test_limits_that_an_opening_has_lowered_count_at_once"),
    # --- workers
    Mutant("each flush that is asked for was committed", "serving/service", "Done(int((known or 0) >= message.number))", "Done(1)", WORKERS),
    Mutant("no flush that is asked for was committed", "serving/service", "Done(int((known or 0) >= message.number))", "Done(0)", WORKERS),
    Mutant("a flush is taken for the one before it", "serving/service", "Done(int((known or 0) >= message.number))", "Done(int((known or 0) >= message.number - 1))", WORKERS),
    Mutant("the number of a flush is not logged", "engine/commit", "                operations.append(Flushed(*transaction.origin))\n", "                pass\n", WORKERS),
    Mutant("the short way forgets whose flush it is", "core/operations", "            parts.append(_FLUSHED.pack(_KIND_FLUSHED, *flush))\n", "            parts.append(_FLUSHED.pack(_KIND_FLUSHED, flush[0], 0))\n", WORKERS),
    Mutant("the short way logs the number of another flush", "core/operations", "else _FLUSHED.pack(_KIND_FLUSHED, *each) for each in flushes)", "else _FLUSHED.pack(_KIND_FLUSHED, each[0], each[1] - 1) for each in flushes)", WORKERS),
    Mutant("the short way does not note a flush in memory", "engine/commit", "                    self._pages.append(first, items, cost_bytes)\n                    for connection, flush in flushes:\n                        state.note_flush(connection, flush)\n", "                    self._pages.append(first, items, cost_bytes)\n", "tests/unit/engine/test_commit.py::test_short_way_writes_the_bytes_of_the_long_way"),
    Mutant("two transactions consume one item", "core/intervals", "        consumed = self.consumed\n        if", "        consumed = self.consumed\n        return not any(map(consumed.overlap, firsts, ends))\n        if", "tests/unit/engine/test_commit.py::test_a_group_consumes_each_item_once"),
    Mutant("a flush ends the run that is logged before it", "engine/commit", "        if transaction.origin is not None and last is its_runs:\n", "        if transaction.origin is not None:\n", "tests/unit/engine/test_commit.py::test_short_way_writes_the_bytes_of_the_long_way"),
    Mutant("a session is filled while another thread flushes it", "runtime/session_state", "    if session._busy and not claims(session):\n        return False\n    session._busy = BUSY\n", "    if session._busy and not session._claims():\n        return False\n", "tests/unit/serving/test_service.py::test_no_thread_flushes_a_session_that_is_filled"),
    Mutant("flushes that come meanwhile have a sync of their own", "serving/server", "                if service.may_gather:\n", "                if False:\n", "tests/workers/test_peers.py::test_flushes_that_come_meanwhile_share_a_sync"),
    Mutant("a flush takes a session that another thread uses", "runtime/session_state", "            if session._busy and not claims(session):\n                return None\n", "", "tests/unit/serving/test_service.py::test_a_session_in_use_fails_its_own_flush_only"),
    Mutant("a checkpoint forgets the flushes of workers", "core/state", "        rest += [Flushed(*each) for each in self.flushes.items()]\n", "        pass\n", WORKERS, 435),
    Mutant("an owner forgets the flushes of the one before it", "serving/service", "        self._queue.inherit_flushes(INHERITED_MAX, SOME_LOST)\n", "        self._queue._store.state.flushes.clear()\n", WORKERS),
    Mutant("the end of an owner forgets the flushes of its workers", "serving/service", "            if client.has_ended:\n                self._queue", "            if True:\n                self._queue", WORKERS),
    Mutant("a flush is answered before its commit", "serving/service", "        client.flush = call, message\n", "        client.flush = call, message\n        client.answer(call, Done(1))\n", WORKERS),
    Mutant("what a connection held stays on hold", "serving/service", "            session.close()\n        except SessionInUseError", "            pass\n        except SessionInUseError", WORKERS),
    Mutant("a flush whose connection has ended is committed", "serving/service", "            self._flushing.remove(client)\n", "            client.session.flush()\n", WORKERS),
    Mutant("a hold that has ended is not fenced", "serving/service", "        if client.is_lost:\n            raise _hold_lost(self._queue.directory, client)\n", "        pass\n", WORKERS),
    Mutant("a hold that has ended is kept", "serving/service", "                _session(client).rollback()\n            except SessionInUseError", "                pass\n            except SessionInUseError", WORKERS),
    Mutant("a hold of nothing ends, too", "serving/service", "        if not holds(_session(client)):\n            self._keep_no_hold(client)\n", "", WORKERS),
    Mutant("what has no room in an answer is delivered", "serving/portion", "        self._put_back(reader, runs, len(items) - kept)\n", "", "tests/unit/serving/test_service.py::test_only_items_that_are_sent_are_delivered"),
    Mutant("a flush consumes what an earlier one has brought", "workers/worker_state", "expected, len(self._ahead)\n", "expected, 0\n", WORKERS),
    Mutant("owners do not see a session that gets items ahead", "workers/worker_state", "        if most:\n            self._presence.hold()\n", "", "tests/workers/test_handover.py::test_items_ahead_of_a_session_that_has_held_nothing_go_to_the_next_owner"),
    Mutant("items ahead are released twice", "serving/service", "        back, client.back = client.back, 0\n", "        back = client.back\n", WORKERS),
    Mutant("a flush that is refused at once keeps the items ahead", "serving/service", "        if back:\n", "        if back and message.wait_milliseconds in {0, FOR_EVER}:\n", "tests/workers/test_prefetch.py::test_a_refused_flush_consumes_nothing_that_it_brought"),
    Mutant("a hold ends between the check and the commit of two queues", "runtime/session_state", "        check()\n        for session, origin", "        for session, origin", "tests/workers/test_sessions.py::test_a_hold_that_ends_around_a_flush_of_two_queues"),
    Mutant("an error of a delay ends the serving", "serving/service", "            except Exception as error:  # also one of ``retry_delay_seconds``", "            except MemoryError as error:  # also one of ``retry_delay_seconds``", "tests/unit/serving/test_service.py::test_an_error_of_the_delay_reaches_no_other_connection"),
    Mutant("a takeover does not look whether it was closed", "workers/owner", "            if self._closed:  # by a signal handler of this thread\n                self.close_owner()\n", "", "tests/workers/test_sessions.py::test_close_during_a_takeover_leaves_no_owner"),
    Mutant("the owner of the first queue is not asked to own another one", "workers/common_owner", "                if answer == CONNECTED_TEXT:  # it owns", "                if False:  # it owns", "tests/workers/test_common_owner.py::test_an_owner_that_is_asked_has_its_time"),
    Mutant("a queue is owned before the first one of its directory", "workers/common_owner", "or self._owns_first(others[0])\n", "or True\n", "tests/workers/test_common_owner.py::test_the_process_that_takes_over_one_queue_owns_all"),
    Mutant("a transaction refuses what its process is about to own", "transactions", "            len(queue)  # each call finds", "            pass  # each call finds", "tests/workers/test_common_owner.py::test_a_transaction_of_a_process_that_owns_one_queue_owns_the_others"),
    Mutant("items ahead that a dequeue returns are not counted", "workers/worker_state", "            self._ahead = rest\n            self._held += count\n", "            self._ahead = rest\n", WORKERS),
    Mutant("items ahead of an owner that has ended are delivered", "workers/worker_state", "counts = link, counts\n        self._ahead = ahead\n", "counts = link, counts\n", "tests/workers/test_prefetch.py::test_items_ahead_end_with_their_owner"),
    Mutant("a flush takes ahead of those that wait", "serving/service", "            is_first = not self._is_leaving and not self._waits.has(_reader(self._queue, client))\n", "            is_first = not self._is_leaving\n", "tests/unit/serving/test_service.py::test_a_flush_takes_nothing_ahead_of_those_that_wait"),
    Mutant("one item is given back for all", "serving/service", "        _session(client).put_back(message.items)\n", "        _session(client).put_back(1)\n", WORKERS),
    Mutant("a small flush overtakes one that waits for room", "serving/service", "                self._blocked.insert(0, self._blocked.pop())\n                break\n", "                self._blocked.insert(0, self._blocked.pop())\n                self._commit_group([self._blocked.pop(1)], now)\n                break\n", "tests/unit/serving/test_service.py::test_a_small_flush_does_not_overtake_one_that_waits"),
    Mutant("a clear is made again", "workers/owner", "                    if call in _ONCE and lost.was_sent:\n", "                    if False:\n", "tests/workers/test_sessions.py::test_a_call_that_must_not_be_repeated_is_not_repeated"),
    Mutant("a session whose block an error leaves is not in use", "runtime/session_state", "        exclusively([session], partial(trial.fail, transaction, session._reader, error))\n", "        trial.fail(transaction, session._reader, error)\n", "tests/misuse/test_reentry.py::test_row_05_a_handler_during_a_cleanup"),
    Mutant("an error cleans up a session that another thread uses since", "interrupts/call_guard", "        if FREE_THREADED or self._busy != TORN or self._is_ending:\n            return\n", "        self._busy = TORN\n", "tests/api/test_flush_all.py::test_an_error_ends_no_call_of_another_thread"),
    Mutant("a session that cleans up is not in use", "interrupts/call_guard", "        if FREE_THREADED or self._busy != TORN or self._is_ending:\n", "        if FREE_THREADED or self._busy != TORN:\n", "tests/misuse/test_reentry.py::test_row_05_a_handler_during_a_cleanup"),
    Mutant("a compaction is noted behind its lock", "runtime/space", "        compactors[thread] = None\n        try:\n            with self.keeping_files():\n", "        try:\n            with self.keeping_files():\n                compactors[thread] = None\n", "tests/misuse/test_reentry.py::test_row_05_a_handler_beside_the_lock_of_a_compaction"),
    Mutant("the steps of a compaction are no calls", "runtime/maintenance", "self._open_queue.around(copy.step)", "copy.step()", "tests/misuse/test_reentry.py::test_row_05_a_handler_during_a_read"),
    Mutant("held items are read outside of a call", "runtime/retries", "self.open_queue.around(partial(list, islice(items, most)))", "list(islice(items, most))", "tests/misuse/test_reentry.py::test_row_05_a_handler_during_a_read"),
    Mutant("a close that is refused stops the server", "queue", "        open_queue.check_closable()  # first", "        # first", "tests/workers/test_sessions.py::test_a_close_by_the_progress_of_a_compaction_serves_on"),
    Mutant("a shared queue that refuses its close ends its sessions", "workers/shared_queue", "        self._owner.check_closable()\n", "", "tests/workers/test_sessions.py::test_a_close_that_is_refused_serves_on"),
    Mutant("an owner that leaves does not see what sessions hold", "serving/service", "(holds(session) or buffered(session) > 0)\n    return has_items", "buffered(session) > 0\n    return has_items", WORKERS),
    Mutant("an owner that leaves does not see what was put", "serving/service", "(holds(session) or buffered(session) > 0)\n    return has_items", "holds(session)\n    return has_items", WORKERS),
    Mutant("an owner that leaves hands out items", "serving/service", "        if self._is_leaving and not _has_work(client):\n", "        if False:\n", WORKERS),
    Mutant("an owner that leaves serves those that wait", "serving/service", "            self._waits.let_go(lambda client: not _has_work(client))\n", "", "tests/unit/serving/test_service.py::test_a_session_without_items_gets_no_answer_from_an_owner_that_leaves"),
    Mutant("an owner that leaves ends the wait of sessions that hold items", "serving/service", "            self._waits.let_go(lambda client: not _has_work(client))\n", "            self._waits.let_go(lambda client: True)\n", "tests/unit/serving/test_service.py::test_a_wait_of_a_session_that_holds_items_goes_on"),
    Mutant("an owner that leaves answers a last put", "serving/server", " if not self._service.may_leave() else ():\n", ":\n", "tests/workers/test_grace.py::test_what_comes_behind_the_last_turn_is_not_answered"),
    Mutant("an interrupted grace leaves the queue open", "queue", "        finally:  # Ctrl-C ends the grace of workers, and no more\n", "        except ZeroDivisionError:\n            pass\n        else:\n", "tests/workers/test_grace.py::test_an_interruption_ends_the_grace"),
    Mutant("a call that was sent counts as one that was not", "workers/link", "        error.was_sent = was_sent\n", "        error.was_sent = False\n", "tests/workers/test_sessions.py::test_a_call_that_must_not_be_repeated_is_not_repeated"),
    Mutant("a loss behind a cancellation is told to none", "workers/worker_state", "        self._untold = copy(lost)", "        self._untold = None", "tests/workers/test_aio_connect.py::test_a_timeout_hides_no_lost_session"),
    Mutant("a transaction goes on behind a loss of one session", "workers/worker_state", "                joint.is_lost = True  # the others have gone on", "                pass  # the others have gone on", "tests/workers/test_aio_connect.py::test_a_timeout_hides_no_lost_session_of_a_transaction"),
    Mutant("the end of a block asks for what it cannot use", "workers/worker_session", "                self._together.settle()\n", "                self._resume(is_last=True)\n", "tests/workers/test_sessions.py::test_a_block_that_ends_in_doubt_waits_for_no_owner"),
    Mutant("a child of a function notes its signals", "cli/workers/signals", "        signals._restore()\n", "        pass\n", "tests/faces/test_cli_worker.py::test_a_signal_ends_a_child_of_the_function"),
    Mutant("an interrupted flush of two queues is noted by one", "workers/worker_state", "            self._together.note(answer)\n", "            pass\n", "tests/workers/test_sessions.py::test_an_interrupted_flush_of_two_queues_has_one_outcome"),
    Mutant("the last that waits is served first", "serving/waits", "        place.line.append((client, call))\n", "        place.line.appendleft((client, call))\n", WORKERS, 944),
    Mutant("a take does not stand behind those that wait", "serving/service", "            self._waits.serve_one(reader, self._now())\n        if not self._waits.has(reader) and self._take_now", "            pass\n        if self._take_now", "tests/unit/serving/test_service.py::test_a_take_stands_behind_those_that_wait"),
    Mutant("an owner that leaves hands nothing over", "serving/server", "        self._service.hand_over()\n", "", "tests/workers/test_handover.py::test_a_session_goes_on_at_the_next_owner"),
    Mutant("a session that was handed over can be flushed", "runtime/session_state", "        session._transaction = None\n\n    exclusively([session], forget)\n", "        work = session._open()\n        work.runs, work.given = [], 0\n\n    exclusively([session], forget)\n", "tests/workers/test_handover.py::test_a_flush_of_two_queues_behind_a_hand_over"),
    Mutant("the next owner looks at its first event", "serving/server", "        due = now()  # the first turn looks at the sessions that the last owner has left\n", "        due = inf\n", "tests/workers/test_handover.py::test_a_worker_that_is_killed_meanwhile_gives_its_items_back"),
    Mutant("an owner that cannot serve drops the holds", "serving/server", "            shielded(self._service.hand_over)  # the thread did not start", "            pass  # the thread did not start", "tests/workers/test_handover.py::test_an_owner_that_cannot_serve_leaves_the_holds_in_place"),
    Mutant("a flush at the next owner waits for all of its time again", "workers/worker_state", "                    timeout = None if timeout is None else max(timeout - (self._now() - begun), 0.0)\n", "", "tests/workers/test_handover.py::test_the_time_of_a_flush_goes_on"),
    Mutant("a repair does not look for proven adoptions", "recovery/salvage", "in proven if unfolding.prepared is None else ():", "in ():", "tests/unit/recovery/test_lost_adoptions.py::test_a_lost_adoption_that_its_file_proves"),
    Mutant("a repair gives up the files of lost adoptions", "recovery/salvage", "    if salvaged.without_log:\n", "    if True:\n", "tests/unit/recovery/test_lost_adoptions.py::test_a_lost_adoption_without_a_proof"),
    Mutant("a repair leaves an outrun file to the opening, which deletes it", "recovery/lost_adoptions", "(number or version > markers.get(marker, -1))", "number", "tests/unit/recovery/test_lost_adoptions.py::test_a_lost_adoption_whose_marker_was_outrun"),
    Mutant("a repair without a log keeps no damaged segment", "recovery/salvage", "            damaged.add(file)\n", "            pass\n", "tests/unit/recovery/test_repair.py::test_neither_log_nor_block"),
    Mutant("one hold that is too large ends all others", "serving/handover", "        if left_bytes < 0:\n            break\n", "        if left_bytes < 0:\n            return []\n", "tests/unit/serving/test_handover.py"),
    Mutant("an owner that leaves releases what it hands over", "serving/away", "                let_go(client.session)\n", "                pass\n", "tests/workers/test_handover.py::test_a_hand_over_is_no_rollback"),
    Mutant("items of a session that has put others are held for it", "runtime/session_state", " or (work.enqueues and not may_enqueue):\n", ":\n", "tests/workers/test_handover.py::test_an_item_that_was_put_to_the_owner_is_lost"),
    Mutant("a rejection is forgotten at the next owner", "runtime/session_state", "work.settled or work.rejections or (", "work.settled or (", "tests/workers/test_handover.py::test_a_rejection_at_the_owner_is_not_handed_over"),
    Mutant("an owner holds items for sessions that have ended", "serving/away", "                if hold.connection in present:\n", "                if True:\n", "tests/workers/test_handover.py::test_what_ends_without_an_owner_goes_back[rollback]"),
    Mutant("a session that ends while it is away keeps its items", "serving/away", "        return [client for client in self.clients if client.id not in present]\n", "        return []\n", WORKERS, 3058),
    Mutant("a session that comes back has its items released", "serving/service", "client.is_lost, away.session = away.kept, away.is_lost, None\n", "client.is_lost = away.kept, away.is_lost\n", WORKERS),
    Mutant("the time of a hold ends with its owner", "serving/service", "            self.clients.add(client)\n            self._lease(client)\n", "            self.clients.add(client)\n", "tests/workers/test_handover.py::test_the_time_of_a_hold_begins_anew[True]"),
    Mutant("a session that comes back has no time for its hold", "serving/service", "            client.expires = away.expires\n            self._leased.add(client)\n", "            pass\n", "tests/workers/test_handover.py::test_a_session_that_comes_back_keeps_its_time"),
    Mutant("a session goes on with less than it holds", "workers/worker_state", "        if self._has_put or kept < self._held:\n", "        if self._has_put:\n", WORKERS),
    Mutant("the next owner keeps what the session never got", "workers/worker_state", "        if beyond:\n", "        if False:\n", WORKERS),
    Mutant("items that an interrupted call took are given at the next owner", "workers/worker_state", "            self._held = given\n", "            pass\n", "tests/workers/test_handover.py::test_a_call_that_finds_no_owner_gives_its_items_back"),
    Mutant("an item ahead is given for another one", "workers/worker_state", "            ahead = self._ahead if self._held == given else []\n", "            ahead = self._ahead\n", "tests/workers/test_handover.py::test_an_interrupted_dequeue_of_an_item_ahead"),
    Mutant("a forked child frees the locks of its parent", "workers/shared_queue", "        queue._locks.abandon()\n", "", "tests/workers/test_handover.py::test_a_forked_child_holds_nothing_for_its_parent"),
    Mutant("a rollback without an owner is not seen", "workers/worker_state", "        self._clear()\n        if self._link is None:\n            self._presence.release()\n", "        self._clear()\n", "tests/workers/test_handover.py::test_what_ends_without_an_owner_goes_back[rollback]"),
    Mutant("a session that is dropped is seen", "workers/worker_state", "            presence.close()\n", "            pass\n", "tests/workers/test_handover.py::test_what_ends_without_an_owner_goes_back[drop]"),
    Mutant("held items are handed over twice", "serving/handover", "                    self._disk.ftruncate(fd, 0)\n", "                    pass\n", "tests/unit/serving/test_handover.py::test_holds_are_taken_once"),
    Mutant("an owner that sees no sessions gives their items back", "serving/handover", "            return asked\n", "            return set()\n", "tests/unit/serving/test_handover.py::test_a_session_that_cannot_be_seen_is_kept"),
    Mutant("items behind the last one are held", "core/availability", "        if not Cursor().lacks(runs, self._state.next_sequence):", "        if not Cursor().lacks(runs, 2**64):", "tests/unit/core/test_availability.py::test_items_are_held_again_by_their_sequences"),
    Mutant("items that are not ready are held", "core/availability", "        if self.returned.common(again).size < again.size:\n            return False\n", "", "tests/unit/core/test_availability.py::test_items_are_held_again_by_their_sequences"),
    Mutant("a delivery is taken back twice", "workers/worker_session", "            except LinkLostError:  # perhaps behind its effect: it is not made again\n                self._lose()\n", "            except LinkLostError:\n                self._lose()\n                self._uncount(count)\n", "tests/workers/test_handover.py::test_a_delivery_is_taken_back_once"),
    Mutant("what was put twice counts twice", "workers/worker_state", "        batch.items, batch.payload_bytes = left, left_bytes\n", "        pass\n", WORKERS),
    Mutant("what a refused flush has put is put again", "serving/service", '        client.answer(call, Failed({**encode_error(error), "taken": client.taken}))\n', '        client.answer(call, Failed({**encode_error(error), "taken": 0}))\n', WORKERS),
    Mutant("a session that was lost goes on", "workers/worker_state", "            error = SessionLostError(", "            return\n            error = SessionLostError(", WORKERS),
    Mutant("what was put is lost without a word", "workers/worker_state", "        if self._held or self._has_put:\n            held", "        if self._held:\n            held", WORKERS),
    Mutant("a flush in doubt is repeated", "workers/worker_state", "                    if self._learn():\n                        committed = True\n                        break\n", "                    self._doubt = False\n                    self._need_whole()\n", WORKERS),
    Mutant("a flush in doubt is given up", "workers/worker_state", "                is_committed = isinstance(answer, Done) and bool(answer.value)\n", "                is_committed = False\n", WORKERS),
    Mutant("a session of a refused transaction stays in use", "interrupts/call_guard", "            any(tear)  #", "            pass  #", f"{INTERRUPTS}::test_row_04_a_refused_transaction_is_interrupted"),
    Mutant("a flush whose answer was lost is one that was not sent", "workers/link", "        if self.is_lost:\n            raise LinkLostError\n", "", f"{INTERRUPTS}::test_row_04_a_worker_learns_the_outcome_of_an_interrupted_flush"),
    Mutant("a cancel goes into the middle of a message", "workers/link", "        if sum(going.sent) == len(going.data):", "        if True:", "tests/workers/test_links.py::test_a_flush_is_given_up_between_messages"),
    Mutant("lengths of a message are not compared", "serving/protocol", "    if ends[-1] != end:\n", "    if False:\n", "tests/unit/serving/test_protocol.py::test_what_no_peer_sends_raises"),
    Mutant("an item above the limit of a message is held", "serving/service", "            session.put_back(len(items))\n", "", "tests/unit/serving/test_service.py::test_an_item_that_no_message_can_hold_stays"),
    Mutant("the place of a removed subscription stays", "serving/waits", "            if reader.ready.is_closed and not place.line:  # the subscription was removed\n", "            if False:\n", "tests/unit/serving/test_service.py::test_a_removed_subscription_leaves_nothing_to_serve"),
    Mutant("an item that no message can hold counts as delivered", "serving/service", "            uncount(session, len(items))\n", "", "tests/unit/serving/test_service.py::test_only_items_that_are_sent_are_delivered"),
    Mutant("a take-over goes by a relative path", "workers/owner", "abspath(path), name\n", "str(path), name\n", "tests/workers/test_sessions.py::test_a_relative_path_stays_that_of_the_connection"),
    Mutant("a take-over has its segments at a relative path", "workers/owner", "        if options.data_path is not None:\n", "        if False:\n", "tests/workers/test_sessions.py::test_a_new_queue_has_its_segments_where_the_connection_was_made"),
    Mutant("a session makes a removed subscription again", "workers/shared_queue", "here.subscription(subscription).session(name) if", "here.subscribe(subscription).session(name) if", "tests/workers/test_sessions.py::test_a_removed_subscription_is_not_made_again"),
    Mutant("what an interrupted put_back has released was given", "workers/worker_state", "        self._given, self._ahead = given, []\n", "        self._ahead = []\n", "tests/workers/test_links.py::test_an_interrupted_put_back_leaves_nothing_to_consume"),
    Mutant("a finished item is rejected", "compat/standard_queue", "        yield from (each for each in own if each in self._tasks)", "        yield from list(own)", "tests/unit/faces/test_attempts.py::test_a_rejection_is_for_an_item_that_is_not_done"),
    Mutant("an item that was delivered before comes in a batch", "serving/portion", "            if self._comes_alone(reader, runs):\n", "            if False:\n", "tests/unit/serving/test_service.py::test_a_batch_ends_before_an_item_that_was_delivered"),
    Mutant("a message begins in the middle of a cancel", "workers/link", "        with self._cancelling:  # a cancel of the last call is sent whole\n            pass\n", "", "tests/workers/test_links.py::test_no_message_begins_in_the_middle_of_a_cancel"),
    Mutant("a joint flush has any number", "serving/service", "not client.number < number <= _FLUSH_MAX", "not client.number < number", "tests/workers/test_sessions.py::test_a_wrong_number_of_a_joint_flush_breaks_nothing"),
    Mutant("a session in use fails the flushes that came with it", "serving/service", "            if len(group) > 1:  # the others must not fail with it\n                return sum(self._commit_group([client], now) for client in group) > 0\n            results = [error]\n", "            results = [error] * len(group)\n", "tests/unit/serving/test_service.py::test_a_session_in_use_fails_its_own_flush_only"),
    Mutant("a worker that buries waits for room", "serving/service", "        return may_wait and not buries(_session(client))\n", "        return may_wait\n", "tests/unit/serving/test_service.py::test_a_flush_that_buries_an_item_waits_for_no_room"),
    Mutant("a record goes by the first end of its connection", "serving/service", "        self._leaving.pop(client.id, None)  # it is back\n", "", "tests/unit/serving/test_service.py::test_the_record_goes_with_the_worker"),
    Mutant("an owner removes the socket of the next queue", "serving/server", "            self._disk.unlink(join(self.directory, SOCKET_NAME))", "            __import__(\"os\").unlink(join(self.directory, SOCKET_NAME))", "tests/workers/test_sessions.py::test_a_renamed_queue_serves_on_and_leaves_the_next_one_alone"),
    Mutant("a session that is closed while it connects waits", "workers/worker_state", "        if self.closed:  # meanwhile", "        if False:  # meanwhile", "tests/workers/test_sessions.py::test_a_queue_that_is_closed_while_a_session_connects"),
    Mutant("a forked child writes into the part of its parent", "interprocess/multi_writer", "        if self._forks != self._disk.forks():\n            raise", "        if False:\n            raise", "tests/unit/interprocess/test_multi_writer.py::test_a_forked_child_leaves_the_part_of_its_parent"),
    Mutant("a neighbour that cannot be read for now is taken for none", "recovery/in_doubt", "            if may_pass(error):\n                raise\n            continue\n", "            continue\n", "tests/unit/recovery/test_in_doubt.py::test_deletion_beside_a_neighbour_that_cannot_be_read_for_now"),
    Mutant("a copy is accepted beside what cannot be read for now", "recovery/opening", "with suppress(PermissionError, FileNotFoundError):", "with suppress(OSError):", "tests/misuse/test_passing_errors.py::test_a_copy_beside_an_original_that_cannot_be_read_now"),
    Mutant("a lock file that cannot be read for now is no copy", "storage/lock", "    except OUT_OF_REACH:\n        return", "    except OSError:\n        return", "tests/misuse/test_passing_errors.py::test_a_copy_whose_lock_file_cannot_be_opened_now"),
    Mutant("a location that cannot be locked for now needs no lock", "storage/lock", "            if not has_no_locks(error):\n                raise\n", "", "tests/misuse/test_passing_errors.py::test_a_location_that_cannot_be_locked_now_has_one_owner"),
    Mutant("a rename that failed has not happened", "storage/publication", "elif not self._may_have(target):", "else:", "tests/misuse/test_passing_errors.py::test_a_rename_that_failed_may_have_happened"),
    Mutant("an orphan that memory is too short for is damaged", "recovery/replay", "except (CorruptionError, UnsupportedFormatError):\n                recovered.set_aside", "except Exception:\n                recovered.set_aside", "tests/misuse/test_passing_errors.py::test_an_orphan_that_memory_is_too_short_for_is_not_set_aside"),
    Mutant("a deletion that failed is not finished", "recovery/catalog", "not find_generations(disk, directory) and not _has_begun(disk, directory)", "not find_generations(disk, directory)", "tests/unit/storage/test_layout.py::test_delete_cut_short"),
    Mutant("a call that has only begun its work is done", "cli/workers/loop", "need_finished(self._function(self._codec.decode(item)))", "self._function(self._codec.decode(item))", "tests/faces/test_cli_worker.py::test_a_call_that_only_begins_its_work_has_failed"),
    Mutant("a pipeline that ends forgets those that wait", "runtime/pipeline", "            has_ended = self._has_ended  # first: all that came before the end is served\n            if self.waiting or self._waiters:\n                return True\n            if has_ended:", "            if self.waiting or self._waiters:\n                return True\n            if self._has_ended:", "tests/unit/runtime/test_pipeline.py::test_a_pipeline_that_ends_serves_those_that_came_before"),
    Mutant("a subinterpreter has a helper thread", "interrupts/signal_shield", "threading.main_thread().ident if _is_main_interpreter() else None", "threading.main_thread().ident", "tests/misuse/test_subinterpreters.py::test_a_subinterpreter_connects"),
    Mutant("a thread that cannot be made fails a committed flush", "runtime/background", "            try:\n                # A daemon: a process that ends must not wait for it, and unfinished jobs do no harm.\n                threading.Thread(target=self._run, name=THREAD_NAME, daemon=True).start()\n", "            thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)\n            try:\n                thread.start()\n", "tests/unit/runtime/test_maintenance.py::test_without_a_thread_a_flush_gives_back"),
    Mutant("retired segments are counted while another thread deletes them", "engine/trim", "            for at in range(len(self.retired)):\n                found_bytes += self.retired[at][1]\n", "            found_bytes = sum(size_bytes for _, size_bytes in self.retired.copy())\n", "tests/unit/engine/test_trim.py::test_segments_that_another_thread_deletes_meanwhile"),
    Mutant("queues that are served together close one after the other", "cli/workers/verbs", "    leave_together(abspath(queue_directory(queue.path, queue.name)) for queue in queues)\n", "", "tests/faces/test_cli_serve.py::test_a_signal_lets_transactions_over_several_queues_finish"),
    Mutant("a server that takes messages counts as idle", "serving/departure", "                self._idle.discard(member)\n            return not self._is_decided", "                pass\n            return not self._is_decided", "tests/unit/serving/test_departure.py::test_a_member_that_takes_messages_is_not_idle"),
    Mutant("servers that leave wait for one that has ended", "serving/departure", "            self._members.pop(member, None)\n", "", "tests/unit/serving/test_departure.py::test_the_end_is_decided_when_all_are_idle_at_once"),
    Mutant("an interruption loses a dead-letter queue", "queue", "                dead_letter = PersistentQueue.__new__(PersistentQueue)\n                self._dead_letters, self._owns_dead_letters = dead_letter, True  # first: no interruption must lose it\n                PersistentQueue.__init__(dead_letter, parent, name, options=shared, serve=serve)\n", "                dead_letter = PersistentQueue(parent, name, options=shared, serve=serve)\n                self._owns_dead_letters = True\n", "tests/misuse/test_interrupts.py::test_row_03_an_opening_loses_no_dead_letter_queue"),
    Mutant("items behind a spill have the length of those before", "engine/store", "transaction.cost_bytes = transaction.uniform_items = 0", "transaction.cost_bytes = 0", "tests/unit/engine/test_spill.py::test_items_behind_a_spill_are_measured_anew"),
    Mutant("a series of another length has that of the first", "engine/transaction", "not buffered or self.each_bytes == each_bytes", "True", "tests/unit/engine/test_spill.py::test_lengths_that_a_session_has_measured"),
    Mutant("a series of another length has that of the batch before it", "core/items", "not self.items or self._each_bytes == each_bytes", "True", "tests/unit/core/test_items.py::test_a_batch_knows_its_items"),
    Mutant("an item behind a series has its length", "core/items", "        self._each_bytes = MIXED\n        self.items.append(item)", "        self.items.append(item)", "tests/unit/core/test_items.py::test_a_batch_knows_its_items"),
    Mutant("an alarm is taken for an error of the system", "system/path_errors", "return () if _is_of_handler(sys.exc_info()[1]) else kinds", "return kinds", "tests/misuse/test_alarms.py::test_an_alarm_ends_a_wait_for_an_item"),
    Mutant("an alarm is swallowed as an error of the system", "system/path_errors", "return not _is_of_handler(error) and super()", "return super()", "tests/unit/system/test_path_errors.py"),
    # --- Spark
    Mutant("a query acknowledges where its checkpoint says", "spark/stream", "            _acknowledge(options.place, options.subscription, end, self._onlooker.look()[1].identity)\n", "            _acknowledge(Place(end[\"path\"], end[\"queue\"] or None), end[\"subscription\"], end, self._onlooker.look()[1].identity)\n", "tests/spark/test_stream.py::test_a_query_on_a_copy_leaves_the_original_alone"),
    Mutant("only the first target records a marker", "spark/pipelines/stage", "        if not work.takes:\n            self._record(work.marker)\n", "", "tests/spark/test_pipeline.py::test_a_source_with_other_targets_does_not_run_again"),
    Mutant("two stages share a marker", "spark/pipelines/graph", "                if other != stage.name:\n", "                if other == edge:\n", "tests/spark/test_pipeline.py::test_a_marker_belongs_to_one_stage"),
    Mutant("inputs at an edge that is gone are left silently", "spark/pipelines/store", "            for name in others:\n                self._leave_edge(name, forgotten)\n", "", "tests/spark/test_pipeline_failures.py::test_an_edge_that_is_gone_is_not_forgotten_silently"),
    # --- failing calls
    Mutant("who finds no descriptor breaks the queue", "engine/commit", "            if error.errno not in LACKING:\n", "            if error.errno not in NO_SPACE:\n", "faults", 3013),
    Mutant("a log that finds no room for its name breaks the queue", "storage/log", "            with unless_lacking(directory, _FOR_ITS_NAME):  # a rename that failed so has not happened\n", "            with ExitStack():\n", "faults"),
    Mutant("a directory that cannot be opened is a sync that failed", "storage/segment_files", "            with unless_lacking(self.directory, \"to sync the names of segments\"):\n", "            with ExitStack():\n", "faults", 26),
    Mutant("an adopted file that finds no room for its name breaks the queue", "storage/segment_files", "            if error.errno not in LACKING:\n                raise\n            return False\n", "            raise\n", "publishes faults", 8),
    Mutant("a checkpoint is made before adopted files have their names", "engine/trim", "            self._segments.name_adopted()\n", "            pass\n", "publishes faults", 10),
    Mutant("what has kept its name in the inbox is adopted again", "engine/inbox", " if is_published(name) and name not in adopted]", " if is_published(name)]", "publishes faults", 22),
    Mutant("a failed sync breaks nothing", "engine/store", "        self.fail(error)\n        broken = BrokenQueueError(", "        broken = BrokenQueueError(", "faults"),
    Mutant("a broken queue is taken for usable", "engine/store", "            self.dependent.is_usable = False\n", "            pass\n", "tests/unit/runtime/test_open_queue.py::test_a_broken_queue_is_not_usable"),
    Mutant("a second close returns before the first", "runtime/closing", "        self._await_end()\n", "", "tests/unit/runtime/test_closing.py::test_a_second_close_waits_for_the_first"),
    Mutant("closes of two queues wait for each other", "runtime/closing", " and get_ident() not in _CLOSING", "", "tests/unit/runtime/test_closing.py::test_closes_inside_closes_do_not_wait_for_each_other"),
    Mutant("a child keeps the lock of a queue that its parent was closing", "runtime/closing", "            self._store.lock.release()\n", "", "tests/unit/runtime/test_closing.py::test_a_child_that_is_forked_during_a_close_does_not_wait"),
    Mutant("a queue that is opened broken is taken for usable", "runtime/open_queue", "            if self._store.broken is not None:\n                self.is_usable = False\n", "", "tests/unit/runtime/test_open_queue.py::test_a_queue_that_breaks_as_it_is_opened_is_not_usable"),
    Mutant("nobody hears that the log is full", "engine/store", "            for transaction in refused:\n", "            for transaction in refused[:0]:\n", "faults", 25),
    Mutant("short writes are taken for whole ones", "system/files", "    if written_bytes != length_bytes:\n", "    if False:\n", "faults"),
    Mutant("the rest of a short write goes to its beginning", "system/files", "pwritev(fd, chunk, offset + written_bytes, flags)", "pwritev(fd, chunk, offset, flags)", "faults"),
    Mutant("a segment that could not be made stays", "storage/segment", "                    disk.unlink(path)\n            raise\n", "                    pass\n            raise\n", "faults", 20068),
    Mutant("a close that fails breaks the queue", "system/disk", "        if error.errno in _CLOSED_BEFORE | told:\n            raise\n", "        raise\n", "faults"),
    Mutant("a close that fails breaks one of several queues", "system/disk", "    try:\n        close(fd)\n    except faults(OSError) as error:\n        if error.errno in _CLOSED_BEFORE | told:\n            raise\n", "    close(fd)\n", "several faults"),
    Mutant("nobody hears that the spare has found no room", "storage/pool", "self._disk.close(fd, NO_SPACE)", "self._disk.close(fd)", "tests/durability/test_failing_closes.py::test_a_spare_that_has_found_no_room"),
)  # fmt: skip


def run_mutants(mutants: Iterable[Mutant], schedules: int, jobs: int = 1, batch: int = 1) -> Iterable[Verdict]:
    """Hunt for each of the mutants with up to ``schedules`` schedules, ``jobs`` mutants at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(partial(_hunt_alone, schedules, batch), mutants)


def _hunt_alone(schedules: int, batch: int, mutant: Mutant) -> Verdict:
    with tempfile.TemporaryDirectory() as scratch:
        plant(mutant, Path(scratch))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([scratch, str(ROOT)])}
        if mutant.where.startswith("tests/"):
            return _test(mutant, environment)
        return _hunt(mutant, environment, schedules, batch)


def plant(mutant: Mutant, directory: Path) -> None:
    """Write the importer of the bug into a directory, for ``PYTHONPATH``. Raises ``ValueError`` if the text of the bug
    does not occur exactly once."""
    path = PACKAGE / f"{mutant.room}.py"
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(f"mutant {mutant.name!r}: its text occurs {text.count(mutant.old)} times in {mutant.room}")
    name = f"{PACKAGE.name}.{mutant.room.replace('/', '.')}"
    constants = f"NAME, PATH, TEXT = {name!r}, {str(path)!r}, {text.replace(mutant.old, mutant.new)!r}\n"
    (directory / "sitecustomize.py").write_text(constants + _IMPORTER, encoding="utf-8")


def _test(mutant: Mutant, environment: dict[str, str]) -> Verdict:
    """Run the test that finds the bug."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-p", "no:xdist", mutant.where],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if line.startswith("E  ")]
    if done.returncode not in {0, 1} or any(f" {blunder}:" in line for blunder in _BLUNDERS for line in errors):
        raise RuntimeError(f"mutant {mutant.name!r} is no bug but a blunder:\n{done.stdout}{done.stderr}")
    return Verdict(mutant, done.returncode == 1, 1, errors[0][:100] if errors else "")


def _hunt(mutant: Mutant, environment: dict[str, str], schedules: int, batch: int) -> Verdict:
    if mutant.where == MISUSE:
        return _hunt_misuse(mutant, environment)
    arguments = ["random", "--first", str(mutant.first), "--schedules", str(schedules), "--progress", str(batch)]
    style = mutant.where.removesuffix(" faults")
    if style != mutant.where or style == "faults":
        arguments.append("--faults")
    if style in {*STYLES, SEVERAL, RETRIES, PIPELINES, WORKERS}:
        arguments += ["--style", style]
    done = _campaign(environment, arguments)
    counts = [int(line.split()[0]) for line in done.stdout.splitlines() if " schedules" in line]
    last = done.stderr.strip().splitlines()
    how = next((line for line in reversed(last) if "Error" in line), last[-1] if last else "")
    violations = [line for line in last if line.startswith("tests.crash.exploring.ViolationError: ")]
    if done.returncode != 0 and (
        not violations or any(f" {blunder}{mark}" in violations[-1] for blunder in _BLUNDERS for mark in ":(")
    ):
        raise RuntimeError(f"mutant {mutant.name!r} is no bug but a blunder:\n{done.stderr}")
    is_caught = done.returncode != 0
    seed = mutant.first + batch * (len(counts) - 1) if is_caught else None
    return Verdict(mutant, is_caught, counts[-1] if counts else 0, how[:100], seed)


def _hunt_misuse(mutant: Mutant, environment: dict[str, str]) -> Verdict:
    """Run the directed programs, each with one kind of misuse, until one finds the bug.

    Some have threads. On a busy machine these may come one behind the other, so each program runs several times.
    """
    done = _campaign(environment, ["misuse", "--directed", "--repeat", _REPEATS])
    last = done.stderr.strip().splitlines()
    violations = [line for line in last if line.startswith("tests.crash.exploring.ViolationError: ")]
    if done.returncode != 0 and not violations:
        raise RuntimeError(f"mutant {mutant.name!r} is no bug but a blunder:\n{done.stderr}")
    return Verdict(mutant, done.returncode != 0, 0, violations[-1][:100] if violations else "")


def _campaign(environment: dict[str, str], arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a campaign of ``tests.crash`` with the bug."""
    return subprocess.run(
        [sys.executable, "-m", "tests.crash", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
