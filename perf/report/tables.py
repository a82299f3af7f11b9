"""Saves the results of ``python -m perf`` as JSON, and shows them as Markdown tables and charts.

``python -m perf.report.tables perf/results/results.json`` measures nothing. It writes the Markdown and the charts again
beside the JSON, and the tables of bars and rates into both ``README.md``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ..contenders import BARE, SQLITE, Durability
from ..contenders.peers import LMDB, PYTHON_PEERS, SERVERS
from ..counts import Cost
from ..harness import Measured, file_system, percentile, ratios, spread, table_head, table_line
from ..workloads import Workload

_PARTS = (0.5, 0.9, 0.99, 1.0)
_COLUMNS = (
    "way", "contender", "items/s", "ours is", "half µs", "90 % µs", "99 % µs", "longest µs",
    "syncs", "bytes written", "processor µs", "memory KiB",
)  # fmt: skip
_LEFT = ("way", "contender")
_BARS, _END_OF_BARS = "<!-- bars -->", "<!-- end of bars -->"
_RATES, _END_OF_RATES = "<!-- rates -->", "<!-- end of rates -->"
_RATED = ("single", "batch", "threads-8")
_BESIDE = {
    **{each.name: [each.name] for each in (BARE, SQLITE, LMDB)},
    "best queue of Python": [each.name for each in PYTHON_PEERS],
    **{each.name: [each.name] for each in SERVERS},
}
"""The columns of the table of rates, and their contenders. Of several contenders the fastest counts."""
_PACKAGES = (
    "persistentqueue", "zlib-ng",
    "lmdb", "persist-queue", "queuelib", "litequeue", "diskcache", "huey", "redis", "greenstalk",
)  # fmt: skip
Found = dict[str, Any]


def machine(directory: Path) -> Found:
    """Describe the machine, the file system of the directory, and the versions of the packages."""
    cpu = [
        line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if line.startswith("model name")
    ]
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": cpu[0].partition(": ")[2] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "kernel": platform.release(),
        "file system": file_system(directory),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **{name: version for name in _PACKAGES if (version := _version(name))},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def record(workload: Workload, measured: Mapping[str, Measured], costs: Mapping[str, Mapping[str, Cost]]) -> Found:
    """Return the measurement of a workload as it is saved in JSON."""
    ours = next(iter(workload.entries))
    ways: dict[str, list[Found]] = {}
    for way in workload.ways:
        ways[way] = []
        for name, found in measured.items():
            entry = workload.entries[name]
            flushes = found.flush_seconds(way)
            cost = costs.get(way, costs.get("in", {}) if workload.in_turn else {}).get(name)
            ways[way].append(
                {
                    "contender": name,
                    "durability": entry.contender.durability.value,
                    "threads": entry.threads,
                    "part": entry.part,
                    "items_per_second": found.rates(way),
                    "ours_is": ratios(measured, way, ours, name),
                    "flush_seconds": {f"{part:g}": percentile(flushes, part) for part in _PARTS},
                    "cost": cost._asdict() if cost else None,
                }
            )
    missing = [name for name in workload.entries if name not in measured]
    return {"what": workload.what, "ways": ways, "missing": missing, "batch": workload.batch}


# --- Markdown --------------------------------------------------------------------------------------------------------


def tables(found: Found) -> Iterator[str]:
    """Yield the lines of all tables: first the bars, then for each workload a table for each durability."""
    if found["bars"]:
        yield table_head()
        yield from (table_line(row) for row in found["bars"])
        yield ""
    for workload in found["workloads"].values():
        yield from table(workload)


def bars_block(found: Found) -> str:
    """Return the table of bars for ``perf/README.md``, between its first and last marker line."""
    rows = [table_line((row[0], row[1], *row[3:])) for row in found["bars"]]
    return "\n".join([_BARS, table_head(("what", "ours", "ratio", "bar", "met?")), *rows, _END_OF_BARS])


def rates_block(found: Found) -> str:
    """Return the table of rates for ``README.md``, between its first and last marker line."""
    workloads = [found["workloads"][name] for name in _RATED if name in found["workloads"]]
    rows = [table_line(cells) for workload in workloads for cells in _rates(workload)]
    return "\n".join([_RATES, table_head(("", "ours, items/s", *_BESIDE), ("",)), *rows, _END_OF_RATES])


def _rates(workload: Found) -> Iterator[Sequence[str]]:
    """Yield a line for each direction: our rate, and its ratio to the rate of each column."""
    threads = workload["ways"]["in"][0]["threads"]
    what = f"{workload['batch']:,} items per flush" if workload["batch"] > 1 else "One item per flush"
    for way, label in (("in", f"{what}, {threads} threads, in" if threads > 1 else f"{what}, in"), ("out", "… out")):
        ours, *others = workload["ways"][way]
        ours_is = {row["contender"]: median(row["ours_is"]) for row in others}
        beside = [[ours_is[name] for name in names if name in ours_is] for names in _BESIDE.values()]
        yield (
            label,
            f"{median(ours['items_per_second']):,.0f}",
            *(f"{min(there):.2f}" if there else "" for there in beside),
        )


def table(workload: Found) -> Iterator[str]:
    """Yield the lines of the tables of one workload."""
    for durability in Durability:
        rows = [
            (way, row)
            for way, contenders in workload["ways"].items()
            for row in contenders
            if row["durability"] == durability.value
        ]
        if rows:
            yield f"**{workload['what']}**, {durability.value}:\n"
            yield table_head(_COLUMNS, _LEFT)
            yield from (table_line(_cells(way, row)) for way, row in rows)
            yield ""
    if workload["missing"]:
        yield f"Not installed: {', '.join(workload['missing'])}.\n"


def _cells(way: str, row: Found) -> Sequence[str]:
    cost, seconds = row["cost"], row["flush_seconds"]
    costs = ["", "", "", ""]
    if cost is not None:
        syncs = "" if cost["syncs"] is None else f"{cost['syncs']:.2f}"
        processor_us, memory_kib = 1e6 * cost["processor_seconds"], cost["memory_bytes"] / 1024
        costs = [syncs, f"{cost['written_bytes']:,.0f}", f"{processor_us:,.0f}", f"{memory_kib:,.0f}"]
    return [
        way,
        row["contender"],
        f"{median(row['items_per_second']):,.0f}",
        f"{spread(row['ours_is'])} ×",
        *(f"{1e6 * seconds[f'{part:g}']:,.0f}" for part in _PARTS),
        *costs,
    ]


# --- charts ----------------------------------------------------------------------------------------------------------

_OURS_COLOR = "#1b6ca8"
_COLORS = {"ours": _OURS_COLOR, "bare disk": "#9a9a9a", "SQLite FULL": "#c0392b", "LMDB": "#e08e0b"}


def charts(found: Found, directory: Path) -> Iterator[Path]:
    """Draw each chart whose workloads were measured, and yield its path."""
    import matplotlib as mpl

    mpl.use("Agg")
    workloads = found["workloads"]
    if "single" in workloads and "batch" in workloads:
        yield _headline([workloads["single"], workloads["batch"]], directory / "headline.png")
    for name, axis in (("batch", "items per flush"), ("size", "bytes per item"), ("threads", "threads")):
        values = {int(key.rpartition("-")[2]): each for key, each in workloads.items() if key.startswith(f"by-{name}-")}
        if values:
            yield _lines(name, values, axis, directory / f"by-{name}.png")


def _headline(workloads: Sequence[Found], path: Path) -> Path:
    """Draw the rates of all contenders whose every flush syncs."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(workloads), figsize=(11, 4.6), layout="constrained")
    for axis, workload in zip(axes, workloads, strict=True):
        names = [row["contender"] for row in workload["ways"]["in"] if row["durability"] == Durability.EACH.value]
        for offset, (way, shade) in zip((0.2, -0.2), (("in", 1.0), ("out", 0.55)), strict=True):
            rates = {row["contender"]: median(row["items_per_second"]) for row in workload["ways"][way]}
            at = [len(names) - number + offset for number in range(len(names))]
            colors = [_COLORS.get(name, "#6c8a5e") for name in names]
            bars = axis.barh(at, [rates[name] for name in names], 0.38, color=colors, alpha=shade, label=way)
            axis.bar_label(bars, [f"{rates[name]:,.0f}" for name in names], padding=3, fontsize=7)
        axis.set_yticks([len(names) - number for number in range(len(names))], names)
        axis.set_xlabel("items per second; dark: in, light: out")
        axis.set_title(workload["what"], fontsize=10)
        axis.margins(x=0.18)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Every flush durable on return: one sync each, on the same disk, in turn", fontsize=11)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path


def _lines(name: str, values: Mapping[int, Found], label: str, path: Path) -> Path:
    """Draw the items per second over the values of a parameter."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
    for axis, way in zip(axes, ("in", "out"), strict=True):
        for contender in [row["contender"] for row in next(iter(values.values()))["ways"][way]]:
            at, low, middle, high = [], [], [], []
            for value, workload in sorted(values.items()):
                rates = sorted(
                    next(r["items_per_second"] for r in workload["ways"][way] if r["contender"] == contender)
                )
                at.append(value)
                low.append(rates[len(rates) // 4])
                middle.append(median(rates))
                high.append(rates[-1 - len(rates) // 4])
            color = _COLORS.get(contender, "#6c8a5e")
            axis.plot(at, middle, marker="o", markersize=4, color=color, label=contender)
            axis.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0)
        axis.set_xscale("log", base=2 if name == "threads" else 10)
        axis.set_yscale("log")
        axis.set_xlabel(label)
        axis.set_title(way)
        axis.grid(True, which="major", alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if name == "threads":
            axis.set_xticks(sorted(values), [str(value) for value in sorted(values)])
    axes[0].set_ylabel("items per second")
    axes[0].legend(fontsize=8, frameon=False)
    what = next(iter(values.values()))["what"] if name != "threads" else "One item of 100 B per flush"
    figure.suptitle({"batch": "Items of 100 B", "size": "One item per flush"}.get(name, what), fontsize=11)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path


def save(found: Found, directory: Path) -> None:
    """Write ``results.json``, ``results.md`` and the charts into the directory, and the tables into the documents."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    show(directory / "results.json")


def show(path: Path) -> None:
    """Write the Markdown and the charts of a JSON file beside it, and the tables into the documents above it.

    The table of bars goes into the ``README.md`` one directory above the results, the table of rates into the one two
    directories above. A document without the marker lines stays unchanged.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    head = [
        "# Results\n",
        f"`{found['command']}`, in {found['seconds'] / 60:.0f} minutes, on\n",
        "; ".join(f"{key} {value}" for key, value in found["machine"].items()) + ".\n",
        "What is compared, and what the columns mean, is in `../README.md`.\n",
    ]
    images = [f"![{image.stem}]({image.name})\n" for image in charts(found, path.parent)]
    path.with_suffix(".md").write_text("\n".join([*head, *images, *tables(found)]) + "\n", encoding="utf-8")
    above = path.absolute().parent.parent
    replace(bars_block(found), above / "README.md")
    replace(rates_block(found), above.parent / "README.md")


def replace(block: str, document: Path) -> None:
    """Replace the text between the block's marker lines in the document. Do nothing if the markers are missing."""
    begin, *_, end = block.splitlines()
    if document.exists():
        before, _, rest = document.read_text(encoding="utf-8").partition(begin)
        _, has_end, after = rest.partition(end)
        if has_end:
            document.write_text(before + block + after, encoding="utf-8")


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.report.tables", description=__doc__)
    parser.add_argument("results", type=Path)
    show(parser.parse_args().results)


if __name__ == "__main__":
    _main()
