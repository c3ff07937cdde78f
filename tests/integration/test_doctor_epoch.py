"""What the doctor predicts for an epoch is what a reader then counts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import pqindex
from pqindex.doctor import examine, facts_of_index
from pqindex.doctor.epoch import predict_epoch
from pqindex.doctor.pieces import group_costs, pieces_of
from pqindex.doctor.storing import storing_of
from pqindex.reader import GROUP_CACHE_BYTES

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the benchmark is a folder of the repository, not a part of the package

from benchmarks import shapes  # noqa: E402  # after the path is known

SMALL_PAGES = shapes.Shape(
    key="D",
    name="small, 20 sequences a group, plain, small pages",
    n_files=3,
    n_groups=4,
    rows=(50, 70),
    n_columns=8,
    per_group=20,
    options={"use_dictionary": ["seq_id"], "data_page_size": 1024, "write_batch_size": 64},
)
SHAPES = {shape.key: shape for shape in (*shapes.QUICK, SMALL_PAGES)}
REAL = [
    "basic_motions/many_per_row_group",
    "chick_weights/edge_empty_groups_null_ids",
    "chick_weights/written_by_polars",
    "japanese_vowels/one_per_row_group",
    "japanese_vowels/aligned",
    "plaid/many_per_row_group",
]


def counted(
    selection: pqindex.Selection, columns: list[str] | None, order: list[int], cache: int
) -> dict[str, int]:
    """What a new reader counts for one epoch in an order."""
    with pqindex.Reader(selection, columns, group_cache_bytes=cache) as reader:
        for position in order:
            reader[position]
        return reader.stats()


def check(index: pqindex.Index, columns: list[str] | None, *, cache: int = GROUP_CACHE_BYTES) -> None:
    """Compare an epoch in the same order exactly, and the report within a tenth, with what readers count."""
    selection = index.select()
    n = len(selection)
    files = selection._files
    plan = selection.read_plan(columns)
    groups = group_costs(plan, files.size_bytes)
    pieces = pieces_of(plan, groups)
    random = np.random.default_rng(5)
    shuffles = [random.permutation(n) for _ in range(4)]
    decoded = storing_of(plan, facts_of_index(index._sidecar, plan)).decoded_bytes
    counts = []
    for order in shuffles:
        rank = np.empty(n, np.int64)
        rank[order] = np.arange(n)
        epoch = predict_epoch(
            pieces,
            groups,
            order="shuffled",
            rank=rank,
            group_file=plan.group_file,
            decoded_bytes=decoded,
            cache_bytes=cache,
            own_bytes=1.0,
        )
        found = counted(selection, columns, order.tolist(), cache)
        assert (epoch.n_bytes, epoch.requests) == (found["bytes"], found["ranges"])
        assert epoch.whole_reads == found["groups"]
        if len(pieces.group) == len(
            plan.group_of_segment
        ):  # a piece of several segments may be several page reads
            assert epoch.page_reads == found["page_reads"]
        assert epoch.kept_hits == found["group_cache_hits"]
        counts.append(found)
    report = examine(
        selection._places,
        files,
        index._chunk_source(files),
        lambda plan: facts_of_index(index._sidecar, plan),
        columns=columns,
        target=index.path,
        group_cache_bytes=cache,
    )
    shuffled, in_order = report.epochs
    for found, name in ((shuffled.n_bytes, "bytes"), (shuffled.requests, "ranges")):
        assert found == pytest.approx(np.mean([one[name] for one in counts]), rel=0.1)
    found = counted(selection, columns, list(range(n)), cache)
    assert (in_order.n_bytes, in_order.requests) == (found["bytes"], found["ranges"])


@pytest.mark.parametrize("columns", [None, ["f0", "f3"]], ids=["all columns", "two apart"])
@pytest.mark.parametrize("pages", ["auto", "never"])
@pytest.mark.parametrize("key", SHAPES)
def test_an_epoch_is_predicted_on_the_shapes_of_the_benchmark(
    tmp_path: Path, key: str, pages: str, columns: list[str] | None
) -> None:
    source = shapes.write(SHAPES[key], tmp_path)
    check(pqindex.build(source.data, pages=pages), columns)


@pytest.mark.parametrize("cache", [0, 20_000, 150_000])
@pytest.mark.parametrize("key", ["C", "D"])
def test_an_epoch_is_predicted_where_not_all_that_is_decoded_can_be_kept(
    tmp_path: Path, key: str, cache: int
) -> None:
    source = shapes.write(SHAPES[key], tmp_path)
    check(pqindex.build(source.data), source.columns, cache=cache)


@pytest.mark.parametrize("name", REAL)
def test_an_epoch_is_predicted_on_real_sequences(tmp_path: Path, shared: Path, name: str) -> None:
    folder = shared / "data/sequences" / name
    check(pqindex.build(folder, index=tmp_path / "i.pqindex", skip_null_keys=True), None)


def test_an_epoch_is_predicted_where_sequences_are_in_pieces(tmp_path: Path, shared: Path) -> None:
    folder = shared / "data/sequences/japanese_vowels/many_per_row_group"
    index = pqindex.build(folder, order="t", join=True, index=tmp_path / "i.pqindex")
    assert index.doctor().placement.n_straddling > 0
    check(index, None)


def test_an_epoch_is_predicted_where_rows_of_sequences_take_turns(tmp_path: Path) -> None:
    """Many pieces of a sequence in one row group, of which several lie in a page."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "data").mkdir()
    random = np.random.default_rng(0)
    for number in range(2):
        ids = np.repeat(random.integers(0, 12, 120), random.integers(1, 9, 120))
        steps = np.arange(len(ids)) + 10_000 * number
        values = random.standard_normal(len(ids))
        table = pa.table({"seq_id": ids, "t": steps, "x": values, "y": values.astype(np.float32)})
        pq.write_table(
            table,
            tmp_path / f"data/{number}.parquet",
            row_group_size=200,
            use_dictionary=False,
            data_page_size=128,
            write_batch_size=4,
        )
    index = pqindex.build(tmp_path / "data", order="t", join=True)
    assert index.doctor().placement.n_fragmented > 0
    check(index, None)
    check(index, ["x"], cache=3000)
