"""Short runs of measurements that ``python -m perf`` makes in minutes, with equal limits, so that a loss is noticed."""

from __future__ import annotations

from pathlib import Path

from perf.studies import churn, idle, pool


def test_idle_queues(tmp_path: Path) -> None:
    """Each idle queue takes at most 3 MiB of disk, 100 KiB of memory and 5 descriptors.

    All of them share one thread, and none is left once they are idle.
    """
    found = idle.measure_apart(tmp_path / "idle", 40, 100)
    assert found.is_met, found
    assert found.descriptors == 5
    assert found.length_bytes > 2 * 1024 * 1024  # the measurement did find files


def test_churn_leaves_nothing_over(tmp_path: Path) -> None:
    """During churn, the files are exactly the used ones and the pool, and no descriptor or thread is left over."""
    work = churn.Churn(tmp_path / "churn", seed=7)
    try:
        for found in work.run(1.5, 0.3):
            assert (found.leaked_bytes, found.stray_descriptors, found.threads) == (0, (), 0)
    finally:
        work.close()
    assert work.put == work.taken > 0


def test_churn_would_notice(tmp_path: Path) -> None:
    """The measurement of churn notices one byte too many and a file that was left open."""
    work = churn.Churn(tmp_path / "churn", seed=7)
    try:
        assert work.pause().leaked_bytes == 0
        (tmp_path / "churn" / "data" / "000000000099.seg").write_bytes(b"x")
        (tmp_path / "churn" / "stray").write_bytes(b"")
        with (tmp_path / "churn" / "stray").open():
            found = work.pause()
        assert found.leaked_bytes == 1
        assert [Path(stray).name for stray in found.stray_descriptors] == ["stray"]
        (tmp_path / "churn" / "data" / "000000000099.seg").unlink()
    finally:
        work.close()


def test_segments_from_the_pool_change_no_metadata_but_names(tmp_path: Path) -> None:
    """A segment from the pool is neither lengthened nor shortened. A fresh one is reserved, and not cut when full."""
    items = [bytes([n]) * 1024 * 1024 for n in range(6)]
    calls = {}
    for is_pooled in (True, False):
        contender = pool.Contender(tmp_path / str(is_pooled), 2, is_pooled)
        with contender.queue:
            for _ in range(4):  # the first rounds make files that are large enough
                contender.round(items)
        calls[is_pooled] = contender.put_calls
    assert (calls[True]["fallocate"], calls[True]["ftruncate"], calls[True]["rename"]) == (0, 0, 2)
    assert (calls[False]["fallocate"], calls[False]["ftruncate"]) == (2, 0)


def test_the_lines_of_the_tables(tmp_path: Path) -> None:
    """The lines of the tables can be printed, even from few figures."""
    lines = [*churn.rows(tmp_path / "churn", 0.5), *pool.rows(tmp_path / "pool", 2, 2)]
    assert len(lines) == 5
