"""The layout report: its arithmetic against the reader's own planning, and its advice on layouts made for it."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pqindex
from pqindex import storage
from pqindex.doctor import LayoutReport, Spread, epoch, size_text
from pqindex.doctor.pieces import Pieces, group_costs, pieces_of
from pqindex.doctor.spans import SpanCost, span_cost
from pqindex.errors import ColumnMissingError, SourceChangedError, UsageError
from pqindex.footer import ChunkPlaces, PagePlaces, coalesce, plan_row_range, row_range_blocks

PLAIN: dict[str, Any] = {"use_dictionary": False, "compression": "lz4"}
SMALL_PAGES = {**PLAIN, "data_page_size": 512, "write_batch_size": 16}


def columns_of(ids: np.ndarray[Any, Any]) -> dict[str, Any]:
    random = np.random.default_rng(len(ids))
    return {
        "seq_id": ids,
        "t": np.arange(len(ids), dtype=np.int32),
        "x": random.standard_normal(len(ids)).astype(np.float32),
        "y": random.standard_normal(len(ids)),
    }


def write(
    folder: Path, files: list[list[int]], *, per_group: int = 1, rows: int = 40, **options: Any
) -> Path:
    """Write files of sequences, so many sequences a row group."""
    folder.mkdir(exist_ok=True)
    for number, ids in enumerate(files):
        table = pa.table(columns_of(np.repeat(np.array(ids, np.int64), rows)))
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=rows * per_group, **options)
    return folder


def codes(report: LayoutReport) -> dict[str, str]:
    return {advice.code: advice.severity for advice in report.advice}


def advice_of(report: LayoutReport, code: str) -> Any:
    (found,) = [advice for advice in report.advice if advice.code == code]
    return found


# -- arithmetic -------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), min_size=3, max_size=3),
        min_size=1,
        max_size=6,
    )
)
def test_spans_cost_what_coalescing_them_gives(reads: list[list[tuple[int, int]]]) -> None:
    starts, lengths = np.array(reads).transpose(2, 0, 1)
    found = span_cost(starts, lengths)
    for number, read in enumerate(reads):
        ranges, _ = coalesce([start for start, _ in read], [length for _, length in read])
        assert found.n_ranges[number] == len(ranges)
        assert found.n_bytes[number] == sum(length for _, length in ranges)
        if ranges:
            assert (found.first[number], found.reach[number]) == (ranges[0][0], sum(ranges[-1]))


@pytest.mark.parametrize("columns", [None, ["x"], ["y", "x"], ["l", "s"]])
@pytest.mark.parametrize("options", [SMALL_PAGES, {"data_page_size": 300, "write_batch_size": 8}])
def test_pages_of_all_sequences_at_once_are_those_of_each_row_range(
    tmp_path: Path, columns: list[str] | None, options: dict[str, Any]
) -> None:
    random = np.random.default_rng(1)
    ids = np.repeat(np.arange(30), random.integers(1, 60, 30))
    lists = [[int(i)] * int(k) for i, k in zip(ids, random.integers(0, 4, len(ids)), strict=True)]
    structs = [{"a": int(i), "b": "z" * (int(i) % 40)} for i in ids]
    table = pa.table({**columns_of(ids), "l": lists, "s": structs})
    (tmp_path / "data").mkdir()
    pq.write_table(table, tmp_path / "data/0.parquet", row_group_size=350, **options)
    selection = pqindex.build(tmp_path / "data").select()
    plan = selection.read_plan(columns)
    pieces = pieces_of(plan, group_costs(plan, selection._files.size_bytes))
    assert (pieces.page_bytes >= 0).any()
    assert len(pieces.sequence) > len(selection)  # some straddle
    for i in np.flatnonzero(pieces.page_bytes >= 0).tolist():
        group = int(pieces.group[i])
        chunks = slice(int(plan.chunk_stops[group]), int(plan.chunk_stops[group + 1]))
        places = ChunkPlaces(*(plan.chunks[name][chunks] for name in ChunkPlaces._fields))
        stops = plan.page_stops[chunks.start : chunks.stop + 1].tolist()
        pages = [
            PagePlaces(**{name: values[a:b] for name, values in plan.pages.items()}) if a < b else None
            for a, b in pairwise(stops)
        ]
        (at,) = [
            segment
            for segment in range(*plan.segment_stops[pieces.sequence[i] :][:2].tolist())
            if plan.group_of_segment[segment] == group
        ]
        wanted = plan_row_range(
            plan.schemas[0].project(plan.fields_of(0)),
            places,
            pages,
            n_rows=int(plan.group_n_rows[group]),
            row_start=int(plan.row_start[at]),
            row_stop=int(plan.row_stop[at]),
        )
        blocks = row_range_blocks(plan.schemas[0], places, wanted, file="", row_group=group)
        ranges, _ = coalesce(
            [start for block in blocks for start in block.starts],
            [length for block in blocks for length in block.lengths],
        )
        assert pieces.page_bytes[i] == wanted.n_bytes
        assert pieces.dictionary_bytes[i] == wanted.n_dictionary_bytes
        assert pieces.page_cost.n_ranges[i] == len(ranges)
        assert pieces.page_cost.n_bytes[i] == sum(length for _, length in ranges)


def test_of_very_many_pieces_one_in_some_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(tmp_path / "data", [list(range(300))], per_group=100, rows=40, **SMALL_PAGES)
    index = pqindex.build(data)
    full = index.doctor(["x", "y"])
    monkeypatch.setattr("pqindex.doctor.pieces.MOST_CELLS", 150)  # of 300 pieces of two columns
    some = index.doctor(["x", "y"])
    assert some.amplification.read.mean == pytest.approx(full.amplification.read.mean, rel=0.1)
    assert some.epochs[1].n_bytes == pytest.approx(full.epochs[1].n_bytes, rel=0.1)
    assert some.epochs[1].requests == pytest.approx(full.epochs[1].requests, rel=0.1)


def shared_pieces(group: np.ndarray[Any, Any], costs: np.ndarray[Any, Any]) -> Pieces:
    none = np.zeros(len(group), np.int64)
    return Pieces(np.arange(len(group)), group, none, none > 0, costs, none, SpanCost(none, none, none, none))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50)), min_size=1, max_size=60),
    st.lists(st.integers(0, 200), min_size=5, max_size=5),
    st.integers(0, 500),
)
def test_arithmetic_decides_as_the_memories_played_through_where_all_fits(
    reads: list[tuple[int, int]], stored: list[int], cache_bytes: int
) -> None:
    group, costs = np.array(reads).T
    costs = np.where(group == 0, -1, costs)  # a row group of which no pages are known
    sizes = np.array(stored)
    decoded = np.where(sizes > 100, cache_bytes + 1, 0)  # kept for good, or never
    reads = epoch._Reads(np.arange(len(group)), group, costs, sizes, decoded.astype(np.float64))
    played = epoch._play(reads, cache_bytes, cache_bytes, 10)
    kept = epoch._decide_kept(reads, cache_bytes)
    # Once the group was the better read and was not kept, the reader still tries smaller pages: rare, and passed over.
    same = np.isin(group, np.flatnonzero(sizes <= 100))
    assert played[same].tolist() == kept[same].tolist()


@pytest.mark.parametrize(
    ("n_groups", "n_kept"), [(20_000, 3_000), (40, 10)], ids=["many groups", "few groups"]
)
def test_a_sample_of_pieces_is_decided_as_all_are(n_groups: int, n_kept: int, monkeypatch: Any) -> None:
    random = np.random.default_rng(0)
    group = random.permutation(np.repeat(np.arange(n_groups), 60_000 // n_groups))
    costs = random.integers(5, 15, len(group)) * (1 if n_groups > 100 else 0) + 1
    stored, decoded = np.full(n_groups, 25), np.full(n_groups, 100)
    groups = pieces_groups(stored)
    found = []
    for most in (1 << 20, 1 << 14):
        monkeypatch.setattr(epoch, "MOST_PLAYED", most)
        actions = epoch._decide(
            shared_pieces(group, costs), groups, np.arange(len(group)), decoded, n_kept * 100, is_local=False
        )
        found.append(np.bincount(actions, minlength=4) / len(actions))
    assert np.abs(found[0] - found[1]).max() < 0.03


def pieces_groups(stored: np.ndarray[Any, Any]) -> Any:
    from pqindex.doctor.pieces import GroupCosts

    none = np.zeros(len(stored), np.int64)
    return GroupCosts(stored, SpanCost(none, none, none, none), none > 0)


def test_a_spread_holds_values_that_are_there() -> None:
    assert Spread.of(np.array([9, 1, 4])) == Spread(
        min=1, quarter=1, median=4, three_quarters=9, p99=9, max=9, mean=14 / 3
    )
    assert Spread.of(np.zeros(0)).max == 0


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 KB"), (2.5e9, "2.5 GB")]
)
def test_sizes_are_said_in_the_unit_that_fits(n_bytes: float, text: str) -> None:
    assert size_text(n_bytes) == text


# -- layouts, and what is said of them --------------------------------------------------------------------------


def test_one_plain_sequence_a_row_group_is_said_to_be_good(tmp_path: Path) -> None:
    index = pqindex.build(write(tmp_path / "data", [[1, 2], [3]], rows=4000, **PLAIN))
    report = index.doctor()
    assert codes(report) == {"layout-good": "good"}
    assert report.is_good
    assert report.amplification.read == Spread(
        min=1, quarter=1, median=1, three_quarters=1, p99=1, max=1, mean=1.0
    )
    assert (report.placement.n_whole, report.placement.n_shared_row_groups) == (3, 0)
    assert report.sequences_per_row_group.max == 1
    assert [column.direct_share for column in report.columns] == [1.0] * 4
    assert {(one.codec, one.encoding, one.cost) for one in report.storage} == {("lz4", "plain", 1.0)}
    assert report.pages.checksums == "unknown"
    assert index.layout() == "one sequence per row group, reads cost 1.0x their bytes"


def test_nothing_of_the_source_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = pqindex.build(write(tmp_path / "data", [[1, 2], [3]]))
    shutil.rmtree(tmp_path / "data")
    monkeypatch.setattr(storage, "SourceFile", None)
    assert index.doctor(["x"]).placement.n_sequences == 3
    assert index.layout()


def test_a_shared_row_group_amplifies_a_read_by_the_sequences_in_it_case_58(tmp_path: Path) -> None:
    data = write(tmp_path / "data", [list(range(100))], per_group=50, **PLAIN)
    index = pqindex.build(data, pages="never")
    report = index.doctor(["x"])
    assert report.amplification.read.median == 50
    assert report.amplification.whole_groups.mean == pytest.approx(50)
    # All of it fits in memory and is kept: an epoch pays each byte once.
    assert [one.amplification for one in report.epochs] == pytest.approx([1.0, 1.0])
    assert codes(report) == {"read-amplification": "note", "no-page-places": "note"}
    assert advice_of(report, "no-page-places").remedy == "pqindex build SOURCE --pages auto"
    assert advice_of(report, "read-amplification").remedy == f"pqindex rewrite {index.path} -o DIR"
    assert advice_of(report, "read-amplification").gain == "50.0 x fewer bytes a sequence"
    words = "50 sequences per row group at the median, read whole, which costs a sequence 50.0x its bytes"
    assert index.layout() == words


def test_page_places_bring_a_read_down_to_its_pages_case_58(tmp_path: Path) -> None:
    data = write(tmp_path / "data", [list(range(100))], per_group=100, rows=128, **SMALL_PAGES)
    report = pqindex.build(data).doctor(["x", "y"])
    assert report.pages.recorded_share == 1
    assert report.amplification.whole_groups.median == 100
    assert report.amplification.read.max < 3
    assert "page places recorded" in pqindex.open(f"{data}.pqindex").layout()


def test_dictionaries_that_every_part_needs_are_named(tmp_path: Path) -> None:
    options = {"data_page_size": 256, "write_batch_size": 32}
    data = write(tmp_path / "data", [list(range(100))], per_group=100, **options)
    report = pqindex.build(data).doctor(["y"])
    assert report.amplification.dictionary_share > 0.5
    assert "dictionaries" in codes(report)


def test_row_groups_that_are_never_kept_are_a_warning(tmp_path: Path) -> None:
    data = write(tmp_path / "data", [list(range(100))], per_group=50, **PLAIN)
    selection = pqindex.build(data, pages="never").select()
    report = examined(selection, group_cache_bytes=1000)
    assert codes(report)["read-amplification"] == "warning"
    assert codes(report)["large-row-groups"] == "note"
    assert not report.is_good
    assert not report.largest.is_kept
    assert report.epochs[0].amplification == pytest.approx(50)


def test_row_groups_that_are_read_whole_again_and_again_are_a_warning(tmp_path: Path) -> None:
    data = write(
        tmp_path / "data", [list(range(200)), list(range(200, 400))], per_group=50, rows=64, **SMALL_PAGES
    )
    selection = pqindex.build(data).select()
    report = examined(selection, group_cache_bytes=100_000)  # one row group is kept
    read, shuffled = report.amplification.read.mean, report.epochs[0].amplification
    assert read < 2 < shuffled
    found = advice_of(report, "read-again")
    assert found.severity == "warning"
    assert f"a shuffled epoch costs {shuffled:.1f} x" in found.message
    assert "group_cache_bytes=0" in found.remedy
    without = examined(selection, group_cache_bytes=0)  # as the remedy says
    assert without.epochs[0].amplification == pytest.approx(read)


def examined(selection: pqindex.Selection, *, group_cache_bytes: int) -> LayoutReport:
    from pqindex.doctor import examine, facts_of_index

    index = selection._index
    return examine(
        selection._places,
        selection._files,
        index._chunk_source(selection._files),
        lambda plan: facts_of_index(index._sidecar, plan),
        columns=None,
        target="i",
        group_cache_bytes=group_cache_bytes,
    )


def test_sequences_that_straddle_row_groups_are_counted(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    table = pa.table(columns_of(np.repeat(np.arange(20), 10)))
    pq.write_table(
        table, tmp_path / "data/0.parquet", row_group_size=25
    )  # every fifth boundary is a sequence's
    report = pqindex.build(tmp_path / "data").doctor()
    place = report.placement
    assert (place.n_straddling, place.n_fragmented, place.n_in_several_files) == (4, 0, 0)
    assert place.reads_per_sequence == 24 / 20
    assert codes(report)["straddling"] == "warning"
    assert "4 of 20 sequences lie in more than one row group" in advice_of(report, "straddling").message


def test_pieces_that_touch_across_an_empty_row_group_are_no_fragments(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    table = pa.table(columns_of(np.repeat(np.arange(3), 10)))
    with pq.ParquetWriter(tmp_path / "data/0.parquet", table.schema) as writer:
        for part in (table.slice(0, 15), table.slice(0, 0), table.slice(15)):
            writer.write_table(part)
    place = pqindex.build(tmp_path / "data").doctor().placement
    assert (place.n_straddling, place.n_fragmented) == (1, 0)


def test_a_sequence_in_every_file_is_told_plainly_case_104(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(6):  # a log in the order of time
        steps = np.arange(50) + 50 * number
        table = pa.table({"seq_id": steps % 10, "t": steps, "x": steps * 0.5})
        pq.write_table(table, data / f"{number}.parquet")
    index = pqindex.build(data, order="t", join=True)
    report = index.doctor()
    place = report.placement
    assert (place.n_in_every_file, place.n_in_several_files, place.n_fragmented) == (10, 10, 10)
    found = advice_of(report, "sequence-in-every-file")
    assert found.severity == "warning"
    assert found.message.startswith(
        "all 10 sequences lie in every file (6 files), as in a log in the order of time"
    )
    assert "one read a sequence is impossible; each takes 6 reads on average" in found.message
    assert found.remedy == f"pqindex rewrite {index.path} -o DIR"
    assert "straddling" not in codes(report)
    assert "30.0 pieces per sequence" in index.layout()  # five runs of one row in each file


def test_thousands_of_tiny_row_groups_and_their_footers_are_named_case_103(tmp_path: Path) -> None:
    report = pqindex.build(write(tmp_path / "data", [list(range(1200))], rows=1)).doctor(["x"])
    assert codes(report)["tiny-row-groups"] == "note"
    assert codes(report)["footer-share"] == "note"
    footers = report.footers
    size = (tmp_path / "data/0.parquet").stat().st_size
    assert footers.file_bytes == size
    assert footers.n_bytes == pq.read_metadata(tmp_path / "data/0.parquet").serialized_size
    assert footers.share == footers.n_bytes / size
    assert (footers.index_path_bytes, footers.parsed_bytes) == (0, 8 * footers.n_bytes)


def test_many_columns_are_named_case_102(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    table = pa.table({"seq_id": [1, 1], **{f"c{i}": [0.5, 1.5] for i in range(300)}})
    pq.write_table(table, tmp_path / "data/0.parquet")
    index = pqindex.build(tmp_path / "data")
    assert codes(index.doctor())["wide"] == "note"
    assert "wide" not in codes(index.doctor(["c7"]))


def test_compressed_dictionaries_of_floats_are_slow_to_decode(tmp_path: Path) -> None:
    report = pqindex.build(write(tmp_path / "data", [[1], [2]], rows=500, compression="zstd")).doctor()
    found = advice_of(report, "slow-decode")
    assert "4, with 100% of the bytes, as zstd, dictionary: " in found.message
    assert found.remedy.startswith("pqindex rewrite ")


def test_columns_that_never_decode_directly_say_why(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    table = pa.table({**columns_of(np.repeat([1, 2], 50)), "label": ["a"] * 100, "l": [[1.0]] * 100})
    pq.write_table(table, tmp_path / "data/0.parquet", row_group_size=50, compression={"x": "gzip"})
    report = pqindex.build(tmp_path / "data").doctor()
    reasons = {column.name: column.not_direct for column in report.columns}
    assert reasons["x"] == "gzip, dictionary"
    assert reasons["label"] == "type string"
    assert reasons["l"].startswith("type list")
    assert reasons["y"] is None
    assert "never decoded directly: 1, as 'x' (gzip, dictionary)" in advice_of(report, "not-direct").message


def test_the_largest_item_is_its_rows_times_the_widths_of_its_columns_L6_L29(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    ids = np.repeat([7, 8, 9], [10, 500, 20])
    pq.write_table(pa.table(columns_of(ids)), tmp_path / "data/0.parquet", row_group_size=265)
    index = pqindex.build(tmp_path / "data")
    largest = index.doctor(["x", "y", "t"]).largest
    assert (largest.sequence, largest.sequence_rows) == ("8", 500)
    assert largest.sequence_bytes == 500 * (4 + 8 + 4)
    assert (largest.row_group_rows, largest.row_group_bytes) == (265, 265 * 16)
    assert largest.is_kept
    assert not largest.is_estimate


def test_an_item_that_is_too_large_is_a_warning_L6(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pqindex.doctor.advice.LARGE_ITEM_BYTES", 1000)
    report = pqindex.build(write(tmp_path / "data", [[1]], rows=100)).doctor()
    assert codes(report)["large-item"] == "warning"
    assert "100 rows, about 2.4 KB" in advice_of(report, "large-item").message


def test_keys_that_python_cannot_hold_are_text(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    keys = {
        "date": pa.array([3_000_000], pa.date32()),
        "time": pa.array([1], pa.timestamp("ns")),
        "raw": pa.array([b"\xff\x00"]),
        "large": pa.array([2**63], pa.uint64()),
    }
    pq.write_table(pa.table(keys), tmp_path / "data/0.parquet")
    said = {
        name: pqindex.build(tmp_path / "data", key=name, index=tmp_path / name).doctor().largest.sequence
        for name in keys
    }
    assert said["raw"] == "ff00"
    assert said["large"] == str(2**63)
    assert said["time"].endswith("000000001")
    assert said["date"]


# -- who asks ---------------------------------------------------------------------------------------------------


def test_a_selection_and_a_manifest_are_examined_alone(tmp_path: Path) -> None:
    data = write(tmp_path / "data", [[1, 2, 3, 4], [5, 6]], per_group=2, **PLAIN)
    selection = pqindex.build(data).select("SELECT seq_id FROM index WHERE seq_id IN (1, 5, 6)")
    manifest = selection.pin(tmp_path / "m.manifest.parquet")
    of_selection, of_manifest = selection.doctor(["x"]), manifest.doctor(["x"])
    assert of_selection.placement.n_sequences == 3
    assert (of_selection.placement.n_files, of_selection.placement.n_row_groups) == (2, 2)
    assert of_selection.sequences_per_row_group.max == 2
    assert {**of_manifest.to_dict(), "target": 0, "advice": 0} == {
        **of_selection.to_dict(),
        "target": 0,
        "advice": 0,
    }
    assert of_manifest.target == str(tmp_path / "m.manifest.parquet")


def test_a_manifest_without_its_index_is_examined_by_footers(tmp_path: Path) -> None:
    data = write(tmp_path / "data", [[1, 2, 3, 4], [5, 6]], per_group=3, rows=25, **PLAIN)
    table = pa.table(columns_of(np.repeat([8, 9], 20)))
    pq.write_table(table, data / "9.parquet", row_group_size=15)  # 8 and 9 straddle
    manifest = pqindex.build(data, pages="never").select().pin(tmp_path / "m.manifest.parquet")
    with_index = manifest.doctor().to_dict()
    shutil.rmtree(tmp_path / "data.pqindex")
    without = manifest.doctor().to_dict()
    for report in (with_index, without):
        report["pages"].pop("option")
        report.pop("advice")
    assert without == with_index
    (data / "0.parquet").unlink()
    with pytest.raises(SourceChangedError, match=r"0\.parquet"):
        manifest.doctor()


def test_columns_that_cannot_be_read_are_left_out_and_named(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number, value in enumerate(["text", 1.5]):
        pq.write_table(pa.table({"seq_id": [number], "x": [1.0], "v": [value]}), data / f"{number}.parquet")
    index = pqindex.build(data)
    report = index.doctor()
    assert [column.name for column in report.columns] == ["seq_id", "x"]
    assert report.left_out.keys() == {"v"}
    assert "'v' has types that no one type holds" in advice_of(report, "unreadable-columns").message
    with pytest.raises(pqindex.ColumnTypeError):
        index.doctor(["v"])


def test_columns_are_checked(tmp_path: Path) -> None:
    index = pqindex.build(write(tmp_path / "data", [[1]]))
    with pytest.raises(ColumnMissingError, match="'z'"):
        index.doctor(["z"])
    with pytest.raises(UsageError, match="expected a list of names, found the text 'x'"):
        index.doctor("x")
    with pytest.raises(UsageError, match="group_cache_bytes"):
        examined(index.select(), group_cache_bytes=-1)


def test_a_selection_of_nothing_has_a_report(tmp_path: Path) -> None:
    index = pqindex.build(write(tmp_path / "data", [[1]]))
    report = index.select("SELECT seq_id FROM index WHERE seq_id > 5").doctor()
    assert (report.placement.n_sequences, report.epochs[0].n_bytes) == (0, 0)
    assert codes(report) == {"layout-good": "good"}


def test_a_report_is_json(tmp_path: Path) -> None:
    report = pqindex.build(write(tmp_path / "data", [[1, 2]])).doctor()
    document = json.loads(json.dumps(report.to_dict()))
    assert document["is_good"]
    assert document["epochs"][0]["order"] == "shuffled"
    assert document["columns"][2]["name"] == "x"


def test_parts_are_merged(tmp_path: Path) -> None:
    """What an index knows of chunks is found by file, whatever part it came in by."""
    data = write(tmp_path / "data", [[5, 6], [1, 2]], per_group=2, rows=30, **SMALL_PAGES)
    report = pqindex.build(data).doctor()
    for column in report.columns:
        total = sum(
            pq.read_metadata(path).row_group(0).column(at).total_compressed_size
            for path in data.iterdir()
            for at in [["seq_id", "t", "x", "y"].index(column.name)]
        )
        assert column.n_bytes == total
