"""The declared table of modules: the folders of the package, from the ground up, and the modules in each of them.

A module imports from folders above its own row in this table, and from modules before it in its own folder.
``test_layers`` holds this. ``python -m tests.project.modules`` generates from the table, and from the first sentence of
each module, the map in ``docs/reference/modules.md``; ``test_map_is_current`` fails when it is stale.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "persistentqueue"


class Folder(NamedTuple):
    """A row of the table: a folder, and its modules, each of which imports only from those before it.

    ``purpose`` describes modules of the top folder; a folder of its own is described by its docstring.
    """

    name: str
    modules: tuple[str, ...]
    purpose: str = ""

    @property
    def title(self) -> str:
        """The folder as the map names it."""
        return "persistentqueue/" if self.purpose else f"{self.name}/"

    @property
    def what(self) -> str:
        """Purpose of the folder."""
        return self.purpose or first_sentence(PACKAGE / self.name / "__init__.py")

    def path(self, module: str) -> str:
        """Return the path of a module in the package, without its suffix."""
        return module if self.purpose else f"{self.name}/{module}"


def _folder(name: str, modules: str, purpose: str = "") -> Folder:
    return Folder(name, tuple(modules.split()), purpose)


TABLE = (
    _folder("drawing", "text charts style svg graph"),
    _folder("bottom", "pickling", "Pickles and copies."),
    _folder("errors", "base paths openings calls resources data workers __init__"),
    _folder("measuring", "stalls metrics"),
    _folder(
        "core",
        "checksum intervals page_cache dead_letter header operations block frame delivery_counts encryption items "
        "state availability",
    ),
    _folder(
        "system",
        "progress path_errors disk files event_log startup wakeup directory_handles quota bad_pages trust sockets "
        "byte_locks",
    ),
    _folder("interrupts", "locks members signal_shield call_guard"),
    _folder("codecs", "enclosed_item __init__ held_items"),
    _folder(
        "storage",
        "inbox_access locations schema_files lock log log_reader pool segment publication segment_files layout "
        "inbox_limits relocation",
    ),
    _folder(
        "engine",
        "transaction context reader subscriptions admission compaction segment_use commit trim inbox "
        "adoption store two_phase",
    ),
    _folder("recovery", "mounts in_doubt location_repair catalog replay opening lost_adoptions salvage check"),
    _folder(
        "runtime",
        "background group_commit memory_budget waiting space inspection pipeline closing open_queue maintenance "
        "multi_queue retries session_state",
    ),
    _folder("sessions", "options misplaced_calls session subscription typed", "Options and sessions: public."),
    _folder(
        "serving",
        "errors protocol handover client away waits portion service connections values departure server calls",
    ),
    _folder("interprocess", "splits questions snapshot_view producer consumer_requests multi_writer __init__"),
    _folder("rows", "errors schema values registry json_rows avro_rows arrow_rows codec __init__"),
    _folder("queues", "queue", "The queue of one owner: public."),
    _folder("workers", "link presence common_owner worker_state worker_session owner shared_queue connecting __init__"),
    _folder("top", "transactions __init__", "What people import."),
    _folder("faces", "lifecycle refusals"),
    _folder("importers", "errors source chunks stacks tables recognition transfer __init__"),
    _folder("top faces", "prometheus scrapy", "Other interfaces to a queue, each in one module."),
    _folder("airflow", "waiting hook trigger sensor operator message_queue __init__"),
    _folder("compat", "missing_attributes mutex standard_queue fifo __init__"),
    _folder(
        "aio",
        "futures shared_session opening loop_bound flush_batcher item_waiter standard_queue_worker session calls "
        "shared_queue persistent_queue transactions standard_queue __init__",
    ),
    _folder(
        "spark",
        "sessions java options payload progress workers stages handoff partition_reader writer stream filters source "
        "pipelines/__init__ pipelines/graph pipelines/letters pipelines/edge pipelines/store pipelines/stage "
        "pipelines/scheduler pipelines/picture pipelines/pipeline __init__",
    ),
    _folder(
        "cli",
        "bench formatting streams files parser display/__init__ display/console output app "
        "summary display/report display/watch display/screen display/top maintenance_verbs write_verbs "
        "read_verbs workers/__init__ workers/signals workers/function workers/loop workers/crew workers/verbs verbs "
        "__init__",
    ),
    _folder("start", "__main__", "The command ``python -m persistentqueue``."),
)

FACES = ("faces", "importers", "top faces", "airflow", "compat", "aio", "spark", "cli", "start")
FACES_MAY_IMPORT = {
    "persistentqueue",
    "persistentqueue.codecs",
    "persistentqueue.core.items",
    "persistentqueue.drawing.charts",
    "persistentqueue.drawing.graph",
    "persistentqueue.drawing.style",
    "persistentqueue.drawing.svg",
    "persistentqueue.drawing.text",
    "persistentqueue.interprocess",
    "persistentqueue.misplaced_calls",
    "persistentqueue.options",
    "persistentqueue.pickling",
    "persistentqueue.rows",
    "persistentqueue.rows.codec",
    "persistentqueue.rows.registry",
    "persistentqueue.rows.schema",
    "persistentqueue.storage.layout",
    "persistentqueue.storage.locations",
    "persistentqueue.storage.pool",
    "persistentqueue.interrupts.locks",
    "persistentqueue.interrupts.members",
    "persistentqueue.system.disk",
    "persistentqueue.system.files",
    "persistentqueue.system.path_errors",
    "persistentqueue.system.progress",
    "persistentqueue.workers",
}
"""Modules that a face may import: public names, the second interface, and internals that are declared for it here."""
FACES_MAY_USE = {
    "_counts_attempts",
    "_enqueue_cached",
    "_hands_over_at_once",
    "_has_pipeline",
    "_is_only_consumer",
    "_rejects",
    "_return_unopened",
    "_takes_no_more",
    "_undecodable",
    "_unflushed",
    "_unheld",
}
"""Private methods of ``Session`` that a face may call: the rest of what an event loop needs of a session."""


PLACE = {folder.path(module): (row, at) for row, folder in enumerate(TABLE) for at, module in enumerate(folder.modules)}
"""Position of each module in the table: its row, and its place in the row. A module imports from lower ones only."""
for _row, _each in enumerate(TABLE):
    if not _each.purpose:  # the docstring of a folder, unless its ``__init__`` has code of its own
        PLACE.setdefault(f"{_each.name}/__init__", (_row, -1))
FIRST_FACE = min(row for row, folder in enumerate(TABLE) if folder.name in FACES)


def first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, in one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def current_map() -> str:
    """Return the map of the table: a heading for each folder, and a line for each of its modules."""
    parts = []
    for folder in TABLE:
        lines = [f"**`{folder.title}`** {folder.what}", ""]
        for module in folder.modules:
            path = PACKAGE / f"{folder.path(module)}.py"
            lines.append(f"- `{module}`: {first_sentence(path)}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


DOCUMENT = ROOT / "docs/reference/modules.md"
BEGIN, END = "<!-- modules: made by python -m tests.project.modules -->", "<!-- end of modules -->"


def document() -> str:
    """Return the text of the document that holds the map, with the current map in it."""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    _, end, behind = rest.partition(END)
    if not end:
        raise ValueError(f"{DOCUMENT} has no {BEGIN!r} with a later {END!r}")
    return f"{before}{BEGIN}\n\n{current_map()}\n\n{END}{behind}"


def main() -> None:
    """Write the map."""
    DOCUMENT.write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    main()
