"""Files that an attacker or an accident puts into a queue's directory, and all ways to open it then.

A case plants one file in one place of a real directory: a link, a device, a pipe, a socket, a directory, a lock file
with hostile content, or a forged publication. Then one entry opens the directory: an owner, a producer, a view,
``check``, ``repair`` or the command line. Each case runs in a process of its own, within 512 MiB of address space and
10 seconds of processor time.

Promises: the entry works, or raises a named error. No file outside of the directory changes. The disk holds at most
``_GROWTH_BYTES`` more than before, however large a file claims to be.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import signal
import socket
import stat
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from types import FrameType
from typing import NamedTuple

from persistentqueue import PersistentQueue, PersistentQueueError, Producer, View, check, list_queues, repair
from persistentqueue.cli import main
from persistentqueue.core.block import SEGMENT_MAGIC, encode_block
from persistentqueue.core.frame import encode_frame
from persistentqueue.core.header import HEADER_BYTES, Header, encode_header
from persistentqueue.core.operations import Adoption, Enqueue, MarkerSet, Operation, encode_transaction
from persistentqueue.storage.publication import Draft
from persistentqueue.storage.segment import PUBLISHED
from persistentqueue.system.disk import DISK

from .exploring import ViolationError

MEMORY_BYTES = 512 * 1024 * 1024
CASE_SECONDS = 10.0
_BLOCKED_SECONDS = 60.0
"""Time after which an entry is considered to wait without end."""
_GROWTH_BYTES = 64 * 1024 * 1024
_SECRET = b"not the queue's\n" * 64


class Case(NamedTuple):
    """A planted thing, its place, and the entry that then opens the directory."""

    place: str
    thing: str
    entry: str


# --- planted things --------------------------------------------------------------------------------------------------

PLACES = (
    *("lock", "log", "log/000000000001.log", "log/000000000002.log", "log/999999999999.log", "log/log.free"),
    *("data", "data/000000000001.seg", "data/000000000002.seg", "data/999999999999.seg", "data/junk"),
    *("inbox", "inbox/0000000000000001-0000000000000001.seg", "inbox/0000000000000001-0000000000000001.tmp"),
    *("inbox/0000000000000001-0000000000000001.part", "inbox/ffffffffffffffff-0000000000000000.seg"),
    *("inbox/ffffffffffffffff-0000000000000000.tmp", "inbox/junk", "inbox/closed"),
    *("pool", "pool/log.free", "pool/000000262144-0000000000000001.free", "data.path", "queue.id", "junk"),
)
_CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "zeros": bytes(5000),
    "noise": bytes(range(256)) * 20,
    "brackets": b"[" * 4096,
    "infinity": b'{"pid": Infinity, "host": "h", "since": "s"}',
    "pid": b'{"pid": 1e400, "host": "h", "since": "s"}',
    "digits": b'{"pid": ' + b"9" * 4000 + b"}",
    "escapes": b'{"pid": 1, "host": "\\u001b[2J\\u001b]0;x\\u0007", "since": "\\r\\n\\u0000"}',
    "raw escapes": b"\x1b[2J\x07\r",
    "nested": b'{"place": ["/etc", "x"], "others": [["/", "y"]], "version": 1}',
    "not utf-8": b"\xff\xfe\x80" * 9,
    "newer": b'{"version": 99}',
}


def _publication(operations: list[Operation], blocks: bytes = b"", claims: int | None = None) -> bytes:
    """Return a published file of these operations after its own adoption, with checksums that fit."""
    salt, end = 7, HEADER_BYTES + (len(blocks) if claims is None else claims)
    body = encode_transaction(operations)
    frame, _ = encode_frame(body, salt, 0, 1, 0, 1, len(operations))
    header = encode_header(SEGMENT_MAGIC, Header(0, PUBLISHED, salt, 1, end))
    return header + blocks + frame + body


_OWN = "0000000000000001-0000000000000001.seg"
_PART = "0000000000000001-0000000000000001.part"


def _claims_many(_: str) -> bytes:
    """Return an enqueue of 2**50 items in blocks that do not exist."""
    return _publication([Adoption(PUBLISHED, 7, 0, _OWN), Enqueue(0, 2**50, PUBLISHED, HEADER_BYTES, 0, 0, 0)])


def _names_others(_: str) -> bytes:
    """Return a manifest of parts that lie elsewhere."""
    operations: list[Operation] = [Adoption(PUBLISHED, 7, 0, _OWN)]
    for name in ("../../secret/file", "/etc/passwd", _PART):
        operations += [Adoption(PUBLISHED, 7, 100, name), Enqueue(0, 1, PUBLISHED, HEADER_BYTES, 100, 0, 0)]
    return _publication(operations)


def _marks(_: str) -> bytes:
    return _publication([Adoption(PUBLISHED, 7, 0, _OWN), MarkerSet("m" * 65535, 2**64 - 1)])


def _bomb(_: str) -> bytes:
    """Return Zstandard frames of some kilobytes that expand to gigabytes."""
    try:
        import zstandard
    except ImportError:
        return b""
    body = zstandard.ZstdCompressor(level=3).compress(bytes(64 << 20)) * 16
    blocks, length_bytes, checksum = encode_block([body], 7, HEADER_BYTES, 0, 1)
    data = b"".join(bytes(each) for each in blocks)
    forged = bytearray(data)
    forged[4] |= 4  # the block claims to be compressed
    operations: list[Operation] = [
        Adoption(PUBLISHED, 7, length_bytes, _OWN),
        Enqueue(0, 1, PUBLISHED, HEADER_BYTES, length_bytes, 0, checksum),
    ]
    return _publication(operations, bytes(forged))


_FORGED: dict[str, Callable[[str], bytes]] = {
    "claims many": _claims_many,
    "names others": _names_others,
    "marks": _marks,
    "bomb": _bomb,
}


def _link(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "file")


def _link_directory(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "directory")


def _dangling(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "made")


def _loop(path: Path, _: Path) -> None:
    path.symlink_to(path)


def _hard_link(path: Path, outside: Path) -> None:
    os.link(outside / "file", path)


def _full_directory(path: Path, _: Path) -> None:
    path.mkdir()
    (path / "inside").write_bytes(b"x")


def _socket(path: Path, _: Path) -> None:
    here = os.open(".", os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)  # the path of a socket may have at most 108 bytes
        made.bind(path.name)
        os.fchdir(here)
    os.close(here)


def _device(path: Path, _: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero


def _sparse(path: Path, _: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 42)


def _sparse_publication(path: Path, _: Path) -> None:
    claims = 1 << 42
    operations: list[Operation] = [
        Adoption(PUBLISHED, 7, claims, path.name),
        Enqueue(0, 2**36, PUBLISHED, HEADER_BYTES, claims, 0, 0),
    ]
    data = _publication(operations, claims=claims)
    with path.open("wb") as file:
        file.write(data[:HEADER_BYTES])
        file.seek(HEADER_BYTES + claims)
        file.write(data[HEADER_BYTES:])


def _many(path: Path, _: Path) -> None:
    """Make two thousand empty files beside each other."""
    for number in range(2000):
        (path.parent / f"{number:016x}-{'0' * 16}{path.suffix or '.seg'}").touch()


def _mutated(path: Path, seed: int) -> None:
    """Make a real publication, and change some of its bytes."""
    made = path.parent if path.parent.name == "inbox" else path.parent / "elsewhere"
    made.mkdir(exist_ok=True)
    draft = Draft(DISK, str(made), "0" * 16, 1, encode_block)
    draft.write([b"item"] * 5, 20, 1)
    draft.publish(("m", 1), 1)
    (found,) = made.glob(f"*-{'0' * 16}.seg")
    data = bytearray(found.read_bytes())
    random = Random(seed)
    for _ in range(4):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    found.write_bytes(data)


_PLANTS: dict[str, Callable[[Path, Path], None]] = {
    "link": _link,
    "link to a directory": _link_directory,
    "dangling link": _dangling,
    "loop": _loop,
    "hard link": _hard_link,
    "directory": lambda path, _: path.mkdir(),
    "full directory": _full_directory,
    "pipe": lambda path, _: os.mkfifo(path),
    "socket": _socket,
    "device": _device,
    "sparse": _sparse,
    "sparse publication": _sparse_publication,
    "many": _many,
}
THINGS = (*_PLANTS, *_CONTENTS, *_FORGED, "mutated")


def plant(path: Path, thing: str, outside: Path, seed: int = 0) -> bool:
    """Replace the file at this place by the thing. Return False if the system does not allow it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    with suppress(FileNotFoundError):
        path.unlink()
    path.parent.mkdir(exist_ok=True)
    try:
        if thing == "mutated":
            _mutated(path, seed)
        elif thing in _PLANTS:
            _PLANTS[thing](path, outside)
        else:
            data = _CONTENTS[thing] if thing in _CONTENTS else _FORGED[thing](path.name)
            path.write_bytes(data)
    except OSError:
        return False
    return True


# --- the entries -----------------------------------------------------------------------------------------------------


def _own(root: str) -> None:
    with PersistentQueue(root, "q") as queue:
        queue.subscribe("s")
        with queue.session() as session:
            for _ in range(20):
                with suppress(PersistentQueueError):
                    if session.dequeue_many(50) == []:
                        break
            session.enqueue(b"one more")
            session.flush(("m", 2))
        queue.stats()
        queue.maintain()
        queue.compact()


def _produce(root: str) -> None:
    with Producer(root, "q") as producer:
        producer.enqueue(b"one more")
        producer.flush(("m", 3))


def _look(root: str) -> None:
    view = View(root, "q")
    view.look()
    view.peek(3)


def _check(root: str) -> None:
    check(root, "q")


def _list(root: str) -> None:
    list_queues(root)


def _repair(root: str) -> None:
    repair(root, "q")
    check(root, "q")


def _command(*arguments: str) -> Callable[[str], None]:
    def run(root: str) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), suppress(SystemExit):
            main([each.format(root=root) for each in arguments])
        text = out.getvalue()
        if "\x1b[2J" in text or "\x07" in text or "Traceback" in text:
            raise ViolationError(f"raw bytes of a file, or a traceback, on the terminal: {text[:300]!r}")

    return run


ENTRIES: dict[str, Callable[[str], None]] = {
    "owner": _own,
    "producer": _produce,
    "view": _look,
    "check": _check,
    "repair": _repair,
    "list": _list,
    "cli list": _command("list", "{root}"),
    "cli stat": _command("stat", "{root}/q"),
}

# --- a case ----------------------------------------------------------------------------------------------------------


def generate(number: int) -> Case:
    """Return the case of a seed."""
    random = Random(number)
    place = random.choice(PLACES)
    things = THINGS if place.startswith("inbox/") else (*_PLANTS, *_CONTENTS)
    return Case(place, random.choice(things), random.choice(tuple(ENTRIES)))


def _template(root: Path) -> None:
    """Make a closed queue with items in several segments, a subscription and a publication in its inbox."""
    with PersistentQueue(root, "q", segment_bytes=1 << 14, log_bytes=1 << 14, pool_min_bytes=1 << 15) as queue:
        queue.subscribe("s")
        with queue.session() as session:
            for _ in range(4):
                session.enqueue_many([b"x" * 1000] * 10)
                session.flush(("m", 1))
        queue.maintain()
    with Producer(root, "q") as producer:
        producer.enqueue(b"published")
        producer.flush()


def _state_of(outside: Path) -> list[tuple[str, int, int, bytes]]:
    """Return everything outside of the directory: names, modes, and content."""
    found = []
    for path in sorted(outside.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found.append((str(path), status.st_mode, status.st_size, content))
    return found


def _disk_bytes(root: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in root.rglob("*"))


def _late(number: int, _: FrameType | None) -> None:
    kind = "of the processor" if number == signal.SIGPROF else "of the clock, waiting"
    raise ViolationError(f"no answer in {CASE_SECONDS if number == signal.SIGPROF else _BLOCKED_SECONDS} s {kind}")


def _enter(case: Case, root: Path) -> str:
    """Open the directory within the limits, and return the outcome. It runs in a process of its own."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGPROF, _late)
    signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_PROF, CASE_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, _BLOCKED_SECONDS)
    try:
        ENTRIES[case.entry](str(root))
    except PersistentQueueError:
        return "named"
    except OSError as error:
        # Documented for a directory that cannot be used; the error names the file.
        return "os" if error.filename is not None else f"!{traceback.format_exc()}"
    except BaseException:
        return f"!{traceback.format_exc()}"
    return "works"


def _in_child(case: Case, root: Path) -> str:
    """Return the outcome of the case in a fork of this process, which has one thread."""
    told, tells = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(told)
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            os.write(tells, _enter(case, root).encode()[:30000])
        finally:
            os._exit(0)
    os.close(tells)
    with open(told, "rb") as pipe:
        found = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return found or f"!the process died: {status}"


def run_case(number: int, template: Path, case: Case | None = None) -> str:
    """Run one case; return its outcome. Raises ``ViolationError``."""
    case = generate(number) if case is None else case
    with tempfile.TemporaryDirectory(dir=template.parent) as made:
        root, outside = Path(made) / "root", Path(made) / "secret"
        shutil.copytree(template, root)
        (outside / "directory").mkdir(parents=True)
        (outside / "file").write_bytes(_SECRET)
        (outside / "file").chmod(0o640)
        if not plant(root / "q" / case.place, case.thing, outside, number):
            return "not allowed here"
        before, bytes_before = _state_of(outside), _disk_bytes(root)
        found = _in_child(case, root)
        after = _state_of(outside)
        if after != before:
            changed = [new for new in after if new not in before] or [old for old in before if old not in after]
            raise ViolationError(f"case {number}, {case}: changed outside: {changed}")
        if _disk_bytes(root) - bytes_before > _GROWTH_BYTES:
            raise ViolationError(f"case {number}, {case}: {_disk_bytes(root) - bytes_before} bytes more on the disk")
        if found.startswith("!"):
            raise ViolationError(f"case {number}, {case}: {found[1:]}")
        return found


def hostile(first: int, count: int) -> str:
    """Run ``count`` cases from this seed on; return a summary. Raises ``ViolationError``.

    It must run in a process without other threads, because it forks.
    """
    began, found = time.monotonic(), Counter[str]()
    shared = "/dev/shm"
    with tempfile.TemporaryDirectory(prefix="hostile-", dir=shared if os.access(shared, os.W_OK) else None) as made:
        template = Path(made) / "template"
        _template(template)
        for number in range(first, first + count):
            found[run_case(number, template)] += 1
    seconds = time.monotonic() - began
    told = ", ".join(f"{times} {what}" for what, times in sorted(found.items()))
    return f"{count} hostile files, 0 violations: {told}; {seconds:.1f} s, {count / max(seconds, 1e-9):.0f} per second"
