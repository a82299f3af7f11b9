"""The parts of the reference that consist of what the code says: options, errors, commands, metrics, limits, formats.

``write`` makes one Markdown file of each in ``docs/_generated``. The pages of ``docs/reference`` include these files.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import persistentqueue
from persistentqueue import Options, PersistentQueue, errors
from persistentqueue.cli.parser import Parameter
from persistentqueue.compat.standard_queue import UNDONE_CALLS_MAX
from persistentqueue.serving import protocol

FORMATS = {
    "storage.layout": "Directories and files",
    "core.header": "The header of a file",
    "core.checksum": "Checksums",
    "core.frame": "The log",
    "core.operations": "The operations of the log",
    "core.block": "Segments and blocks",
    "storage.publication": "Published files",
    "storage.locations": "Locations of the segments",
    "storage.inbox_limits": "Limits for producers",
    "storage.pool": "Empty files",
    "storage.lock": "The lock file",
    "core.dead_letter": "Dead letters",
    "codecs.enclosed_item": "Enclosed items",
    "storage.schema_files": "Schemas of typed rows",
    "rows.schema": "Types of typed rows",
    "rows.values": "Values of typed rows",
    "rows.arrow_rows": "Typed rows in Arrow",
    "rows.avro_rows": "Typed rows in Avro",
    "rows.json_rows": "Typed rows in JSON",
    "serving.protocol": "Messages between an owner and its workers",
    "serving.handover": "Held items, from one owner to the next",
}
"""Modules whose docstrings define a format, in the order of the page, with their headings."""
WRITE_ORDERS = {
    "engine.commit": "Commit",
    "engine.two_phase": "Transactions over several queues",
    "recovery.in_doubt": "Settlement of a transaction in doubt",
    "engine.trim": "Trim",
    "engine.compaction": "Compaction",
    "engine.adoption": "Adoption",
    "storage.relocation": "Move of the segments",
    "recovery.opening": "Opening",
    "recovery.replay": "Replay",
    "recovery.salvage": "Salvage",
}
"""Modules whose docstrings define the order of writes or of steps, in the order of the page, with their headings."""
_PLAIN = ".. highlight:: none\n\n"
"""Begins a text whose blocks are no Python."""
_TYPES = {
    "StrPath": "str | PathLike",
    "Progress": "bool | Callable[[int, int | None], object] | None",
    "Delay": "float | Callable[[int], float]",
    "Full": '"raise" | "block"',
    "Compression": '"zstd"',
    "DeadLetterQueue": "PersistentQueue",
}
"""Names of types in annotations, and the types that they stand for."""


def section(docstring: str, name: str) -> dict[str, str]:
    """Return the entries of a section of a docstring in Google style, each on one line."""
    found = re.search(rf"^{name}:\n((?:    .*\n|\n)+)", f"{docstring}\n\n", re.MULTILINE)
    entries = re.findall(r"^(\S.*?): (.*\n(?:    .*\n)*)", dedent(found.group(1)), re.MULTILINE) if found else []
    return {name: " ".join(text.split()) for name, text in entries}


def size(value: float) -> str:
    """Return a number of bytes in the largest unit of which it is a multiple."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if isinstance(value, int) and value >= unit and value % unit == 0:
            return f"{value // unit} {name}"
    return f"{value:,} bytes"


def code(text: str) -> str:
    """Return the text as code in a cell of a table."""
    return f"`{text}`".replace("|", r"\|")


def prose(text: str) -> str:
    """Return a docstring's text in Markdown: code in single backticks."""
    return re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL)


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring's text in Markdown."""
    found = re.match(r"(?:``.*?``|[^`])+?\.(?= [A-Z`]|$)", " ".join(text.split()))
    return prose(found.group()) if found is not None else ""


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    headings = list(headings)
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def rest(text: str) -> str:
    """Return a fence with text that is reStructuredText, as docstrings are."""
    return f"````{{eval-rst}}\n{text.strip()}\n````\n\n"


def _apart(emphasis: re.Match[str]) -> str:
    """Return an emphasis that ends before each code, and begins again behind it."""
    pieces = re.split(r"(\s*``.*?``[^\w\s]*\s*)", emphasis.group(1), flags=re.DOTALL)
    return "".join(piece if at % 2 or not piece else f"*{piece}*" for at, piece in enumerate(pieces))


def options() -> str:
    """Return the table of all options, then each description in full."""
    described = section(inspect.getdoc(PersistentQueue) or "", "Args")
    types = {field.name: str(field.type) for field in fields(Options)}
    others = {"codec": "Codec[T]", "progress": "Progress", "serve": "bool"}
    defaults = {field.name: field.default for field in fields(Options)} | {"serve": False}
    rows, parts = [], []
    for name, described_as in described.items():
        if name not in types | others:
            continue
        text = described_as + (" ``Options`` does not accept this argument." if name in others else "")
        kind = re.sub(r"\w+", lambda found: _TYPES.get(found.group(), found.group()), (types | others)[name])
        default = "`BYTES`" if name == "codec" else _default(name, defaults.get(name))
        rows.append([f"[`{name}`](#{name})", code(kind), default, first_sentence(text)])
        parts.append(f"### {name}\n\n{prose(text)}\n\n")
    return table(["option", "type", "default", "meaning"], rows) + "## Each option in full\n\n" + "".join(parts)


def _default(name: str, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        text = size(value) if "bytes" in name else f"{value:,}"
        return f"{text}/s" if name.endswith("_per_second") else text
    if isinstance(value, float) and name.endswith(("_seconds", "_timeout")):
        return f"{value:g} s"
    return code(repr(value).replace("'", '"'))


def advice() -> dict[str, str]:
    """Return the action that helps for each error, from the tree in the docstring of ``errors``."""
    found: dict[str, str] = {}
    for name, text in re.findall(r"^ .*[├└]── (\w+) +(.*)$", errors.__doc__ or "", re.MULTILINE):
        meaning, _, action = re.sub(r" *\(also an? \w+\)", "", text).strip().partition(": ")
        base = found.get(getattr(persistentqueue, name).__base__.__name__, "")
        found[name] = action or (f"{base}, {meaning[2:]}" if meaning.startswith("… ") else base)
    return found


def error_classes() -> list[type[Exception]]:
    """Return the classes of ``errors`` in the order of the tree, each base before its subclasses."""
    tree = [getattr(errors, name) for name in advice()]
    return [errors.PersistentQueueError, *tree, errors.UnflushedWarning, errors.OtherOptionsWarning]


def error_page() -> str:
    """Return the tree of the errors, then each class with its base, its meaning and what to do."""
    helps, tree, parts = advice(), "", ""
    for kind in error_classes():
        name = kind.__name__
        depth = sum(each.__name__ in errors.__all__ for each in kind.__mro__) - 1
        tree += f"{'  ' * depth}- [`{name}`](#{name.lower()}): {first_sentence(inspect.getdoc(kind) or '')}\n"
        directive = f".. autoexception:: persistentqueue.{name}\n   :show-inheritance:\n   :no-members:"
        parts += f"### {name}\n\n{rest(directive)}"
        if name in helps:
            parts += f"**What to do:** {prose(helps[name][0].upper() + helps[name][1:])}.\n\n"
    others = (errors.__doc__ or "").partition("UnsupportedFormatError")[2].partition("\n\n")[2]
    return f"{tree}\n## Each class\n\n{parts}## Other errors\n\n{rest(dedent_paragraphs(others))}"


def dedent_paragraphs(text: str) -> str:
    """Return the text without the indentation of its first paragraph."""
    first, _, others = text.partition("\n\n")
    return f"{dedent(first)}\n\n{others}"


def command_line() -> str:
    """Return all commands, with arguments, options, defaults and exit statuses."""
    from persistentqueue.cli import app, parser, verbs  # noqa: F401, PLC0415 - the import of verbs declares them

    page = f"{prose(app.STATUS)}\n\n"
    for group in parser.GROUPS:
        page += f"## {group}\n\n"
        for verb in parser.in_group(group):
            page += f"### {verb.name}\n\n```text\n{verb.usage}\n```\n\n{_options_as_code(verb.help)}\n\n"
            rows = [
                [code(each.title), _options_as_code(each.keywords["help"]), _with_sizes(each)]
                for each in verb.parameters
            ]
            page += table(["argument or option", "meaning", "default"], rows)
    return page


def _with_sizes(parameter: Parameter) -> str:
    """Return the facts of a parameter without the word for its default, and with large numbers of bytes as sizes."""
    facts = parameter.facts.removeprefix("default: ")
    if parameter.metavar == "SECONDS":
        return facts
    return re.sub(r"\d[\d,]{4,}", lambda found: size(int(found.group().replace(",", ""))), facts)


def _options_as_code(text: str) -> str:
    """Return a help text with each option as code, whose hyphens do not become dashes."""
    return re.sub(r"(?<![`\w])--[a-z-]+", r"`\g<0>`", text).replace("|", r"\|")


def metrics() -> str:
    """Return the metrics of the collector for Prometheus."""
    from persistentqueue.prometheus import QueueCollector  # noqa: PLC0415 - an optional package

    rows = [
        [code(family.name + "_total" * (family.type == "counter")), family.type, family.documentation]
        for family in QueueCollector().describe()
    ]
    return table(["metric", "type", "meaning"], rows)


def limits() -> str:
    """Return the limits, from the constants that set them."""
    found = {
        name: value
        for module in (
            *("core.block", "core.frame", "core.operations", "core.dead_letter", "core.items", "core.encryption"),
            *("engine.trim", "engine.compaction", "engine.inbox", "storage.inbox_limits", "engine.transaction"),
            *("storage.pool", "storage.publication", "storage.segment_files", "runtime.retries", "runtime.maintenance"),
            *("runtime.session_state", "interprocess.multi_writer", "spark.partition_reader", "codecs"),
        )
        for name, value in vars(importlib.import_module(f"persistentqueue.{module}")).items()
    }
    return "".join(f"## {title}\n\n" + table(["what", "limit", "remarks"], rows) for title, rows in _limits(found))


def _limits(of: Mapping[str, Any]) -> Iterator[tuple[str, list[list[str]]]]:
    days = 86_400
    name_bytes, most_version = f"1 to {of['_NAME_BYTES_MAX']:,} bytes of UTF-8", "2^64 - 1"
    yield (
        "Items and transactions",
        [
            [
                "bytes of an item",
                f"0 to {of['ITEM_BYTES_MAX']:,}",
                "4 GiB - 1; a larger one raises `ItemTooLargeError`",
            ],
            [
                "item of `codecs.Enclosed`",
                f"up to {size(of['ENCLOSED_BYTES_MAX'])}, without its envelope",
                "`max_item_bytes` changes it; a longer one raises `CodecError`",
            ],
            ["items of a queue over its life", "2^63", "a sequence is never used twice"],
            ["items of a transaction", "no limit", f"above {size(of['SPILL_BYTES'])} the session spills to segments"],
            [
                "bytes of a frame of the log",
                f"{of['BODY_BYTES_MAX']:,}",
                "a frame holds runs, and no items of a large group",
            ],
            ["queues of one transaction", "no limit", "all in one parent directory"],
        ],
    )
    yield (
        "Names",
        [
            ["name of a queue", "1 to 64 characters", "`A-Z a-z 0-9 . _ -`, not beginning with a dot"],
            ["name of a subscription", name_bytes, ""],
            ["name of a marker", name_bytes, ""],
            ["version of a marker", f"0 to {most_version}", "it only grows"],
            ["`key_id` of an encryption", f"1 to {of['KEY_ID_BYTES_MAX']} bytes of UTF-8", ""],
            ["key of an encryption", " or ".join(map(str, of["_KEY_BYTES"])) + " bytes", "AES-128, AES-192, AES-256"],
        ],
    )
    yield (
        "Files",
        [
            ["value of an option in bytes", "2^63 - 1", "the largest size of a file"],
            ["first segment", f"at most {size(of['SEGMENT_BYTES_FIRST'])}", "later ones grow to `segment_bytes`"],
            ["items of a block", f"1 to {of['BLOCK_ITEMS']:,}", ""],
            ["payload of a block", f"at most {size(of['BLOCK_BYTES'])}", "a larger item has a block of its own"],
            ["segments open for reading", f"{of['OPEN_FILES']}", "others are opened again when they are read"],
            [
                "growth of the log",
                f"up to {size(of['LOG_BYTES_MAX'])}, or {of['SEGMENTS_PER_LOG']} segments if that is less",
                f"at least {size(of['LOG_BYTES_FREE'])}; longer if the state of the queue needs it",
            ],
            ["least `max_disk_bytes`", f"{of['LOGS_LEAST']} times `log_bytes`", ""],
            ["bytes of a file of the pool", f"{of['SIZE_BYTES_MAX']:,}", ""],
            ["subscriptions; markers", f"{2**32 - 1:,} of each", "each takes memory, and space in each checkpoint"],
        ],
    )
    yield (
        "Other processes",
        [
            ["owners of a queue", "one process", "another one gets `QueueLockedError`"],
            ["threads of the owner; producers; views", "no limit", ""],
            [
                "bytes of an item of a worker (`connect`)",
                f"0 to {protocol.ITEM_BYTES_MAX:,}",
                "64 MiB - 1 KiB; a larger one raises `ItemTooLargeError`",
            ],
            [
                "calls of `get` that are not done, of a shared `compat.Queue`",
                f"{UNDONE_CALLS_MAX} in each process",
                "the next one raises `TooManyFilesError`",
            ],
            ["manifest of a transaction of many processes", size(of["_FRAME_BYTES_MAX"]), "`TooManyPartsError`"],
            ["item that Spark reads", f"{of['_VALUE_BYTES_MAX']:,} bytes", "the longest array of bytes in Java"],
            ["age of a part when it is published", f"{of['PART_SECONDS_MAX'] / days:g} days", "`ExpiredPartError`"],
            [
                "age of a part that no manifest names",
                f"{of['PART_SECONDS_KEPT'] / days:g} days",
                "the owner sweeps it then",
            ],
            ["age of a draft of a dead producer", f"{of['DRAFT_SECONDS_KEPT'] / 3600:g} h", "the owner sweeps it then"],
        ],
    )
    yield (
        "Times and retries",
        [
            ["`retry_delay_seconds`", f"0 to {of['DELAY_SECONDS_MAX']:,.0f} s", "ten years"],
            ["delivery attempts of an item", f"{of['TIMES_MAX']:,}", "the count stays there"],
            ["`timeout` of a call", f"{of['_LONGEST_SECONDS']:,.0f} s", "a longer one is cut to it"],
            ["maintenance after a commit", f"{of['MAINTENANCE_SECONDS']:g} s", "at most; `maintain` runs it at once"],
            ["idle time until spare space is freed", f"{of['IDLE_SECONDS']:g} s", ""],
            ["envelope of a dead letter", size(of["LINE_BYTES_MAX"]), "before the bytes of the item"],
            ["reason of a dead letter", f"{of['_REASON_CHARACTERS_MAX']:,} characters", "a longer one is cut"],
        ],
    )


def docstrings(modules: Mapping[str, str]) -> str:
    """Return the docstrings of these modules under their headings; a reference to another of them becomes a link."""
    names = {name.rpartition(".")[2] for name in (*FORMATS, *WRITE_ORDERS)}
    reference = re.compile(rf"\b(see\*?|format of) ``({'|'.join(names)})``")

    def linked(line: str) -> str:
        """Return a line with references, unless it is a line of a table."""
        return line if re.search(r"\S {2,}\S", line) else reference.sub(r"\1 :ref:`\2 <module-\2>`", line)

    page = ""
    for name, heading in modules.items():
        text = inspect.getdoc(importlib.import_module(f"persistentqueue.{name}")) or ""
        text = re.sub(r"(?<=\s)\*([A-Z][^*]*``[^*]*)\*", _apart, text)
        text = "\n".join(map(linked, text.splitlines()))
        page += f"(module-{name.rpartition('.')[2]})=\n## {heading}\n\n{rest(_PLAIN + text)}"
        page += f"Source: `persistentqueue/{name.replace('.', '/')}.py`\n\n"
    return page


PARTS: dict[str, Callable[[], str]] = {
    "options": options,
    "errors": error_page,
    "command_line": command_line,
    "metrics": metrics,
    "limits": limits,
    "file_format": partial(docstrings, FORMATS),
    "write_orders": partial(docstrings, WRITE_ORDERS),
}
"""The parts, by the names of their files and of the pages that include them."""


def write(folder: Path) -> None:
    """Write all parts into a folder, each in a file of its own. A file that is current stays as it is."""
    folder.mkdir(exist_ok=True)
    for name, make in PARTS.items():
        path, text = folder / f"{name}.md", make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
