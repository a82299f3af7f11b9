"""The build backend: setuptools, with source distributions that are the same bytes in every build.

setuptools writes the time of the build into a source distribution, and the owners, rights and times of the files. If
``SOURCE_DATE_EPOCH`` is in the environment, this backend replaces them. In wheels setuptools does so itself.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """Build the source distribution in this directory; return the name of its file."""
    name: str = build_meta.build_sdist(sdist_directory, config_settings)
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        pack_again(Path(sdist_directory, name), int(epoch))
    return name


def pack_again(archive: Path, epoch: int) -> None:
    """Replace what depends on the machine and the moment in an archive: times, owners, rights and the order."""
    with tarfile.open(archive) as packed:
        files = [(member, packed.extractfile(member)) for member in packed.getmembers()]
        contents = {member: file.read() for member, file in files if file is not None}
    with (
        archive.open("wb") as out,
        gzip.GzipFile("", "wb", fileobj=out, mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for member, content in sorted(contents.items(), key=lambda each: each[0].name):
            plain = tarfile.TarInfo(member.name)
            plain.size, plain.mtime = len(content), epoch
            plain.mode = 0o755 if member.mode & 0o100 else 0o644
            target.addfile(plain, io.BytesIO(content))
