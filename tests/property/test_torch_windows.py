"""Windows equal a loop over all sequences, and reading them equals slicing (rows T19, T20, A5)."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import pqindex
from pqindex.torch import BatchPlan, SequenceStream, WindowDataset
from pqindex.torch.stream import StreamIterator
from pqindex.torch.windowplaces import PrefixSums, RandomWindows, WindowGrid

row_counts = st.lists(st.integers(0, 40), max_size=80)
sizes = st.fixed_dictionaries(
    {
        "length": st.integers(1, 12),
        "stride": st.integers(1, 15),
        "context": st.integers(0, 6),
        "horizon": st.integers(0, 6),
        "partial": st.sampled_from(["drop", "keep", "pad"]),
    }
).map(lambda given: given | ({"context": 0, "horizon": 0} if given["partial"] == "keep" else {}))


def naive_windows(counts, length, stride, context, horizon, partial) -> list[tuple[int, int]]:
    """Return (sequence, first row) of every window, by a loop that says what the definition says."""
    found = []
    for sequence, n in enumerate(counts):
        start, last_row_is_in = (context if partial == "drop" else 0), False
        while start < n:
            if partial == "drop":
                if start + length + horizon > n:
                    break
            elif last_row_is_in:
                break
            found.append((sequence, start))
            last_row_is_in = start + length >= n
            start += stride
    return found


@given(row_counts, sizes)
def test_windows_are_those_of_a_loop_over_all_sequences(counts, options):
    grid = WindowGrid.of(**options)
    sums = PrefixSums(np.array(counts, np.int64), grid.counts)
    expected = naive_windows(counts, **options)
    assert sums.total == len(expected)
    sequences, numbers = sums.locate(np.arange(sums.total))
    found = zip(sequences.tolist(), grid.row_starts(numbers).tolist(), strict=True)
    assert list(found) == expected


@given(row_counts, sizes)
def test_T20_every_window_has_a_row_and_every_row_without_gaps_has_a_window(counts, options):
    windows = naive_windows(counts, **options)
    assert all(0 <= start < counts[sequence] for sequence, start in windows)
    if options["partial"] != "drop" and options["stride"] <= options["length"]:
        rows = {(s, row) for s, start in windows for row in range(start, start + options["length"])}
        assert rows >= {(s, row) for s, n in enumerate(counts) for row in range(n)}


@given(row_counts, sizes, st.sampled_from(["windows", "sequences"]), st.integers(0, 2**64 - 1))
def test_drawn_windows_are_windows_and_hang_on_nothing_but_their_number(counts, options, by, seed):
    grid = WindowGrid.of(**options)
    windows = naive_windows(counts, **options)
    drawn = RandomWindows(grid, np.array(counts, np.int64), by=by, seed=seed)
    assert drawn.total == len(windows if by == "windows" else {sequence for sequence, _ in windows})
    assume(windows)
    items = np.arange(20)
    sequences, numbers = drawn.locate(items, 3)
    found = list(zip(sequences.tolist(), grid.row_starts(numbers).tolist(), strict=True))
    assert set(found) <= set(windows)
    one_by_one = [drawn.locate(items[i : i + 1], 3) for i in range(20)]
    assert [(int(s[0]), int(k[0])) for s, k in one_by_one] == list(
        zip(sequences.tolist(), numbers.tolist(), strict=True)
    )


# -- reading --------------------------------------------------------------------------------------------------

LENGTHS = [5, 1, 17, 30, 2, 9]


@pytest.fixture(scope="module", params=["own_groups", "shared_groups", "pages_always"])
def selection(request, tmp_path_factory):
    """The same rows as one group a sequence, and as groups that hold parts of several, with small pages."""
    folder = tmp_path_factory.mktemp(request.param) / "data"
    folder.mkdir()
    tables = [
        pa.table(
            {
                "seq_id": [i] * n,
                "step": np.arange(n),
                "f0": i * 100.0 + np.arange(n),
                "f1": np.arange(n) * 0.5,
            }
        )
        for i, n in enumerate(LENGTHS)
    ]
    options = {"data_page_size": 32, "write_batch_size": 4}
    if request.param == "shared_groups":
        pq.write_table(pa.concat_tables(tables), folder / "a.parquet", row_group_size=13, **options)
    else:
        with pq.ParquetWriter(folder / "a.parquet", tables[0].schema, **options) as writer:
            for table in tables:
                writer.write_table(table)
    pages = "always" if request.param == "pages_always" else "auto"
    return pqindex.build(folder, order="step", pages=pages).select()


@given(sizes, st.sampled_from([-1.0, "edge"]), st.randoms(use_true_random=False))
def test_reading_a_window_is_slicing_its_sequence(selection, options, padding, random):
    is_padded = options["partial"] == "pad"
    parts = {
        "x": [p for p in ("context", "window") if p == "window" or options["context"]],
        "y": [p for p in ("window", "horizon") if p == "window" or options["horizon"]],
    }
    windows = naive_windows(LENGTHS, **options)
    assume(windows)
    ds = WindowDataset(
        selection,
        {"x": ["f0", "f1"], "y": "f0"},
        **options,
        parts=parts,
        padding=padding if is_padded else None,
    )
    assert len(ds) == len(windows)
    asked = [random.randrange(len(ds)) for _ in range(10)]
    for number, item in zip(asked, ds.__getitems__(asked), strict=True):
        sequence, start = windows[number]
        n, length = LENGTHS[sequence], options["length"]
        assert (item["seq_id"], item["row_start"]) == (sequence, start)
        assert item["length"] == min(length, n - start)
        x = _naive_rows(range(start - options["context"], start + length), n, padding if is_padded else None)
        y = _naive_rows(range(start, start + length + options["horizon"]), n, padding if is_padded else None)
        assert item["x"].tolist() == [
            [padding] * 2 if row is None else [sequence * 100 + row, row * 0.5] for row in x
        ]
        assert item["y"].tolist() == [padding if row is None else sequence * 100 + row for row in y]
        if is_padded:
            assert item["mask"].tolist() == [0 <= row < n for row in range(start, start + length)]
            assert item["mask"].sum() == item["length"]


def _naive_rows(rows, n, padding) -> list[int | None]:
    """Return the rows of the sequence that stand for some rows, None where the padding's value does."""
    if padding is None:
        return [row for row in rows if 0 <= row < n]
    if padding == "edge":
        return [min(max(row, 0), n - 1) for row in rows]
    return [row if 0 <= row < n else None for row in rows]


# -- streams --------------------------------------------------------------------------------------------------


class Numbers:
    seed = None
    digest = "d" * 64

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitems__(self, positions):
        return list(positions)


@given(
    st.integers(1, 120),
    st.integers(1, 15),
    st.integers(1, 4),
    st.integers(1, 5),
    st.booleans(),
    st.data(),
)
def test_L16_ranks_and_workers_share_an_epoch_out_exactly_and_resume_anywhere(
    n, batch_size, world_size, n_workers, items, data
):
    dataset = Numbers(n)
    seen = []
    for rank in range(world_size):
        plan = BatchPlan(
            dataset, batch_size, shuffle="full", seed=2, rank=rank, world_size=world_size, tail="short"
        )
        plan.set_epoch(1)
        expected = list(chain.from_iterable(plan)) if items else list(plan)
        parts = []
        for worker in range(n_workers):
            iterator = StreamIterator(
                plan, dataset, None if items else list, worker=worker, n_workers=n_workers
            )
            part = expected[worker::n_workers]
            stop = data.draw(st.integers(0, len(part)))
            first = [next(iterator) for _ in range(stop)]
            resumed = StreamIterator(
                plan, dataset, None if items else list, worker=worker, n_workers=n_workers
            )
            resumed.load_state_dict(iterator.state_dict())
            parts.append([*first, *resumed])
            assert parts[-1] == part
        assert len(SequenceStream(dataset, plan, collate_fn=None if items else list)) == len(expected)
        seen += chain.from_iterable(parts) if items else chain.from_iterable(chain.from_iterable(parts))
    assert sorted(seen) == list(range(n))
