"""The checks of the distributions: ``make package`` runs them in the environment of ``build`` and ``twine``.

1. The source distribution and the wheel are built, and ``twine check --strict`` accepts them.
2. The source distribution has every file of the repository, and no other one.
3. Both are built again, from the unpacked source distribution: the bytes are the same.
4. The wheel is installed into a new environment, where a queue is opened.

The unpacked source distribution stays, so that its tests can be run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
OF_GIT = {".gitattributes", ".gitignore"}
"""Files of the repository that only git needs."""
MADE = {"PKG-INFO"}
"""Files that the build adds at the top; it also adds a folder ``*.egg-info``."""
TRIAL = """
import sys, tempfile
from persistentqueue import PersistentQueue

with tempfile.TemporaryDirectory() as directory:
    for expected in (None, b"one"):
        with PersistentQueue(directory, "trial") as queue, queue.session() as session:
            if session.dequeue() != expected:
                sys.exit("the queue did not keep its item")
            session.enqueue(b"one")
            session.flush()
"""


def main(dist: Path) -> None:
    """Build into ``dist``, which is emptied before, and check the result; exit with a message if a check fails."""
    shutil.rmtree(dist, ignore_errors=True)
    built = build(ROOT, dist)
    run(sys.executable, "-m", "twine", "check", "--strict", *built)
    source = next(path for path in built if path.suffix == ".gz")
    with tarfile.open(source) as packed:
        # Some releases of Python 3.10 and 3.11 do not know filters yet; the archive was made here.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(dist)
    unpacked = (dist / source.name.removesuffix(".tar.gz")).rename(dist / "unpacked")
    if (ROOT / ".git").exists():
        check_completeness(unpacked)
    for first, second in zip(built, build(unpacked, dist / "again"), strict=True):
        if first.read_bytes() != second.read_bytes():
            sys.exit(f"{first.name} differs from the one that the unpacked source distribution builds: {second}")
    shutil.rmtree(dist / "again")
    try_wheel(next(path for path in built if path.suffix == ".whl"), dist / "environment")
    print("built, complete, the same bytes twice, and installed:", *(path.name for path in built))


def build(root: Path, out: Path) -> list[Path]:
    """Build both distributions of the source in ``root``; return their paths in the order of their names."""
    run(sys.executable, "-m", "build", "--outdir", out, root, output=subprocess.DEVNULL)
    return sorted(out.iterdir())


def check_completeness(unpacked: Path) -> None:
    """Exit if the files of the unpacked source distribution are not those that git knows in the work tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    expected = {name for name in listed.split("\0") if name and (ROOT / name).exists()} - OF_GIT
    found = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()} - MADE
    found = {name for name in found if not name.partition("/")[0].endswith(".egg-info")}
    if found != expected:
        sys.exit(
            f"the source distribution lacks {sorted(expected - found)} and has {sorted(found - expected)} in excess: "
            "name the files in MANIFEST.in, commit them, or delete them"
        )


def try_wheel(wheel: Path, environment: Path) -> None:
    """Install the wheel into a new environment, without extras, and open a queue there."""
    run(sys.executable, "-m", "venv", environment)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", wheel)
    run(python, "-I", "-W", "error", "-c", TRIAL)
    shutil.rmtree(environment)


def run(*command: str | Path, output: int | None = None) -> None:
    """Run a command; exit with its status if it fails. The package of the work tree is not importable there."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run([*map(str, command)], env=environment, stdout=output, check=False)
    if result.returncode:
        sys.exit(f"exit status {result.returncode}: {' '.join(map(str, command))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
