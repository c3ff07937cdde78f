"""WindowDataset over a small real index: items, parts, edges, padding, draws, names, refusals."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import pqindex
from pqindex.errors import (
    NonFiniteError,
    NullValueError,
    PlanError,
    SelectionIndexError,
    SequenceTooShortError,
    UsageError,
)
from pqindex.torch import BatchPlan, WindowDataset, collate_padded

LENGTHS = [3, 10, 1, 25, 7]
FIELDS = {"x": ["f0", "f1"]}


def write(folder, lengths=LENGTHS, row_group_size=11, **more):
    folder.mkdir(parents=True)
    ids = np.repeat(np.arange(len(lengths)), lengths)
    step = np.concatenate([np.arange(n) for n in lengths])
    columns = {
        "seq_id": ids,
        "step": step,
        "f0": ids * 100.0 + step,
        "f1": -1.0 * step,
        "word": [f"{i}/{s}" for i, s in zip(ids, step, strict=True)],
        "pair": [[s, s + 0.5] for s in step],
        **{name: values(ids, step) for name, values in more.items()},
    }
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=row_group_size)
    return folder


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return pqindex.build(write(tmp_path_factory.mktemp("windows") / "data"), order="step")


@pytest.fixture(scope="module")
def selection(index):
    return index.select("SELECT seq_id, row_count AS n FROM index ORDER BY seq_id")


def rows_of(item, name="x") -> list[float]:
    return item[name][:, 0].tolist()


def test_a_window_is_rows_of_one_sequence_and_says_where_it_starts(selection):
    ds = WindowDataset(selection, FIELDS, length=4)
    assert len(ds) == 2 + 6 + 1
    item = ds[1]
    assert list(item) == ["x", "seq_id", "length", "n", "row_start"]
    assert item["x"].tolist() == [[104, -4], [105, -5], [106, -6], [107, -7]]
    assert (item["seq_id"], item["length"], item["n"], item["row_start"]) == (1, 4, 10, 4)
    assert item["x"].dtype == torch.float32
    assert rows_of(ds[-1]) == [400, 401, 402, 403]


def test_T19_windows_go_over_row_groups_and_never_over_sequences(selection):
    ds = WindowDataset(selection, FIELDS, length=4, stride=1)
    assert len(ds) == 7 + 22 + 4
    for i, item in enumerate(ds):
        assert rows_of(item) == [item["seq_id"] * 100 + item["row_start"] + k for k in range(4)], i


def test_T20_no_window_is_all_padding(selection):
    for partial in ("keep", "pad"):
        for stride in (1, 3, 4, 9):
            ds = WindowDataset(selection, FIELDS, length=4, stride=stride, partial=partial)
            assert {item["seq_id"] for item in ds} == set(range(5))
            assert min(item["length"] for item in ds) >= 1


def test_A5_a_window_is_found_in_its_sequence_by_look_up_without_reading(selection):
    ds = WindowDataset(selection, FIELDS, length=2)
    sequences, row_starts = ds.locate(range(len(ds)))
    assert list(zip(sequences.tolist(), row_starts.tolist(), strict=True)) == [
        (s, 2 * k) for s, n in enumerate(LENGTHS) for k in range(n // 2)
    ]
    assert ds._sequences._reader.stats()["reads"] == 0
    assert ds.locate(np.array([3]))[1].tolist() == [4]


def test_the_order_is_the_selection_s(index):
    backwards = index.select("SELECT seq_id FROM index ORDER BY seq_id DESC")
    ds = WindowDataset(backwards, FIELDS, length=5)
    assert [(item["seq_id"], item["row_start"]) for item in ds] == [
        (4, 0),
        *((3, 5 * k) for k in range(5)),
        (1, 0),
        (1, 5),
    ]


def test_kept_windows_are_shorter_at_the_end(selection):
    ds = WindowDataset(selection, FIELDS, length=4, partial="keep")
    assert [item["length"] for item in ds] == [3, 4, 4, 2, 1, 4, 4, 4, 4, 4, 4, 1, 4, 3]
    assert [len(item["x"]) for item in ds] == ds.row_counts.tolist() == [item["length"] for item in ds]
    batch = collate_padded(ds.__getitems__([0, 1]))
    assert batch["mask"].tolist() == [[True] * 3 + [False], [True] * 4]


# -- parts and padding ----------------------------------------------------------------------------------------


def test_context_and_horizon_go_to_the_fields_that_take_them(selection):
    ds = WindowDataset(
        selection,
        {"past": "f0", "now": "f0", "future": "f0", "all": "f0"},
        length=3,
        stride=2,
        context=2,
        horizon=4,
        parts={"past": "context", "future": "horizon", "all": ("context", "window", "horizon")},
    )
    assert [(item["seq_id"], item["row_start"]) for item in ds] == [
        (1, 2),
        *((3, 2 + 2 * k) for k in range(9)),
    ]
    item = ds[3]
    assert item["past"].tolist() == [304, 305]
    assert item["now"].tolist() == [306, 307, 308]
    assert item["future"].tolist() == [309, 310, 311, 312]
    assert item["all"].tolist() == list(range(304, 313))
    assert "mask" not in item


def imitation(selection, **options) -> WindowDataset:
    return WindowDataset(
        selection,
        {"state": "f0", "action": "f1", "word": "word", "pair": "pair"},
        length=1,
        context=2,
        horizon=3,
        partial="pad",
        parts={
            "state": ("context", "window"),
            "action": ("window", "horizon"),
            "word": "horizon",
            "pair": "context",
        },
        **options,
    )


def test_padded_windows_have_their_full_size_and_masks_of_their_parts(selection):
    ds = imitation(selection)
    assert len(ds) == sum(LENGTHS)
    first, last = ds[3], ds[12]
    assert (first["seq_id"], first["row_start"], last["row_start"]) == (1, 0, 9)
    assert first["state"].tolist() == [0, 0, 100]
    assert first["pair"].tolist() == [[0, 0], [0, 0]]
    assert first["word"] == ["1/1", "1/2", "1/3"]
    assert first["context_mask"].tolist() == [False, False]
    assert last["action"].tolist() == [-9, 0, 0, 0]
    assert last["word"] == [None] * 3
    assert last["horizon_mask"].tolist() == [False] * 3
    assert first["mask"].tolist() == last["mask"].tolist() == [True]
    assert ds[10]["horizon_mask"].tolist() == [True, True, False]


def test_padding_with_the_nearest_row_or_values_of_one_s_own(selection):
    item = imitation(selection, padding="edge")[3]
    assert item["state"].tolist() == [100, 100, 100]
    assert item["pair"].tolist() == [[0, 0.5], [0, 0.5]]
    last = imitation(selection, padding={"action": "edge", "state": -7, "word": "-"})[12]
    assert last["action"].tolist() == [-9] * 4
    assert last["word"] == ["-"] * 3
    assert imitation(selection, padding={"state": -7})[3]["state"].tolist() == [-7, -7, 100]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("horizon", [2, 4])
def test_padded_windows_make_batches_with_their_own_masks(selection, side, horizon):
    ds = WindowDataset(
        selection,
        {"x": ["f0"], "next": "f0"},
        length=4,
        horizon=horizon,
        partial="pad",
        parts={"next": "horizon"},
        padding=-1,
    )
    whole = collate_padded(list(ds), side=side, padding_value=-5)
    assert whole["x"].shape == (14, 4, 1)
    assert whole["mask"].sum(1).tolist() == whole["lengths"].tolist() == [item["length"] for item in ds]
    for items in (ds.__getitems__([0, 4]), ds.__getitems__([0, 1])):  # all of them padded; some
        batch = collate_padded(items, side=side, padding_value=-5)
        assert batch["mask"].shape == batch["x"].shape[:2] == (2, 4)
        assert ((batch["x"][:, :, 0] == -1) == ~batch["mask"]).all()
        assert ((batch["next"] == -1) == ~batch["horizon_mask"]).all()
        assert batch["lengths"].tolist() == batch["mask"].sum(1).tolist()
    batch = collate_padded(ds.__getitems__([0, 1]), multiple_of=8, side=side)
    assert batch["x"].shape[:2] == batch["mask"].shape == (2, 8)
    assert batch["mask"].sum(1).tolist() == [3, 4]


def test_masks_of_fills_say_false_for_padded_rows(tmp_path):
    def f(ids, step):
        return pa.array([None if s == 1 else float(s) for s in step])

    selection = pqindex.build(write(tmp_path / "data", [3], f=f)).select()
    item = WindowDataset(selection, {"x": "f"}, length=4, partial="pad", nulls=("fill", 5.0))[0]
    assert item["x"].tolist() == [0, 5, 2, 0]
    assert item["x_mask"].tolist() == [True, False, True, False]
    assert item["mask"].tolist() == [True, True, True, False]


def test_values_are_checked_in_the_rows_that_a_field_takes_and_named_by_the_row_of_the_sequence(tmp_path):
    def f(ids, step):
        return np.where((ids == 1) & (step == 7), np.nan, step)

    def g(ids, step):
        return pa.array([None if (i, s) == (1, 9) else 1.0 for i, s in zip(ids, step, strict=True)])

    selection = pqindex.build(write(tmp_path / "data", [4, 12], row_group_size=5, f=f, g=g)).select()
    ds = WindowDataset(selection, {"x": "f"}, length=4)
    assert ds[1]["x"].tolist() == [0, 1, 2, 3]
    with pytest.raises(
        NonFiniteError, match=r"a.parquet, row group 2: .*column 'f', sequence 1, row 7; found nan"
    ) as error:
        ds[2]
    assert (error.value.row, error.value.row_group) == (7, 2)
    parts = WindowDataset(
        selection,
        {"x": "f", "y": "g"},
        length=6,
        context=4,
        horizon=2,
        parts={"x": "context", "y": "horizon"},
    )
    assert parts.locate([0])[1].tolist() == [4]
    assert parts[0]["y"].tolist() == [1, 1]  # row 9 is in the window, which no field takes
    with pytest.raises(NullValueError, match="field 'y', column 'g', sequence 1, row 9"):
        WindowDataset(selection, {"y": "g"}, length=8, horizon=4, parts={"y": "horizon"})[0]


def test_every_tensor_owns_its_memory(selection):
    ds = WindowDataset(selection, {"x": "f0", "y": "f0"}, length=4, stride=1)
    first, second = ds.__getitems__([0, 1])
    first["x"] += 1000
    assert first["y"].tolist() == [100, 101, 102, 103]
    assert second["x"].tolist() == [101, 102, 103, 104]


# -- what is read ---------------------------------------------------------------------------------------------


def test_getitems_keeps_the_order_and_takes_integers_of_all_kinds(selection):
    ds = WindowDataset(selection, FIELDS, length=4)
    items = ds.__getitems__([8, np.int64(0), torch.tensor(-1)])
    assert [item["seq_id"] for item in items] == [4, 1, 4]
    assert ds.__getitems__([]) == []


@pytest.mark.parametrize("asked", [1.0, "1", None, slice(1)])
def test_what_is_no_number_is_refused(selection, asked):
    with pytest.raises(UsageError, match=r"a window is asked for by .*; expected an integer"):
        WindowDataset(selection, FIELDS, length=4)[asked]


@pytest.mark.parametrize("asked", [9, -10])
def test_numbers_outside_are_refused(selection, asked):
    ds = WindowDataset(selection, FIELDS, length=4)
    for ask in (lambda: ds[asked], lambda: ds.locate([asked]), lambda: ds.locate(np.array([0, 9]))):
        with pytest.raises(SelectionIndexError, match="is outside the 9 windows of the dataset"):
            ask()


def row_start_of(item):
    return item["row_start"]


def test_transforms_come_last(selection):
    ds = WindowDataset(selection, FIELDS, length=4, transform=row_start_of)
    assert list(ds)[:3] == [0, 4, 0]


def test_close_lets_go_of_the_files(selection):
    ds = WindowDataset(selection, FIELDS, length=4)
    assert rows_of(ds[0])[0] == 100
    assert ds._sequences._reader.stats()["open_files"] == 1
    ds.close()
    assert ds._sequences._reader.stats()["open_files"] == 0
    assert rows_of(ds[0])[0] == 100


# -- sizes and identity ---------------------------------------------------------------------------------------


def test_bytes_of_a_window_are_known(selection):
    for ds in (
        WindowDataset(selection, FIELDS, length=4, nulls=("fill", 0)),
        imitation(selection),
        WindowDataset(selection, FIELDS, length=9, partial="keep"),
    ):
        most = max(sum(v.nbytes for v in item.values() if isinstance(v, torch.Tensor)) for item in ds)
        assert ds.max_item_nbytes == most


def test_row_counts_are_shown_without_memory_where_all_are_equal(selection):
    for partial in ("drop", "pad"):
        counts = WindowDataset(selection, FIELDS, length=4, stride=1, partial=partial).row_counts
        assert counts.strides == (0,)
        assert set(counts.tolist()) == {4}
        assert not counts.flags.writeable
    drawn = WindowDataset(selection, FIELDS, length=8, partial="keep", draw=5)
    assert drawn.row_counts.tolist() == [8] * 5  # at most: the next epoch draws others


def test_T25_the_digest_is_of_the_selection_and_the_windows_and_nothing_else(selection, index, tmp_path):
    def digest(source=selection, fields=FIELDS, **options):
        return WindowDataset(source, fields, **{"length": 4} | options).digest

    manifest = selection.pin(tmp_path / "a.manifest.parquet", seed=3)
    again = pqindex.load_manifest(tmp_path / "a.manifest.parquet")
    assert digest(manifest) == digest(again)
    assert digest() == digest(fields={"y": "f1"}) == digest(stride=4) == digest(seed=9)
    others = [
        {},
        {"source": index.select("SELECT seq_id FROM index WHERE seq_id > 0")},
        {"length": 5},
        {"stride": 1},
        {"horizon": 1, "parts": {"x": "horizon"}},
        {"context": 1, "parts": {"x": "context"}},
        {"partial": "keep"},
        {"partial": "pad"},
        {"draw": 5, "stride": 4},
        {"draw": 6},
        {"draw": 5, "draw_by": "sequences"},
        {"draw": 5, "seed": 1},
    ]
    assert len({digest(**options) for options in others}) == len(others)


def test_a_pickled_dataset_is_small_and_gives_the_same_windows(selection):
    for options in ({"stride": 1}, {"draw": 50, "seed": 2}):
        ds = WindowDataset(selection, FIELDS, length=4, **options)
        ds.set_epoch(5)
        pickled = pickle.dumps(ds)
        assert len(pickled) < 10_000
        assert b"PrefixSums" not in pickled  # it grows with the sequences
        other = pickle.loads(pickled)
        assert (other.digest, len(other), other.epoch) == (ds.digest, len(ds), 5)
        assert [rows_of(item) for item in other] == [rows_of(item) for item in ds]


def test_T9_a_dataset_holds_no_list_of_windows(selection):
    ds = WindowDataset(selection, FIELDS, length=1)
    assert not [value for value in vars(ds).values() if isinstance(value, list)]


# -- plans and draws ------------------------------------------------------------------------------------------


def test_a_plan_over_windows_takes_each_once(selection):
    ds = WindowDataset(selection, FIELDS, length=2, stride=1)
    seen = []
    for rank in range(2):
        plan = BatchPlan(ds, 5, shuffle="full", seed=1, rank=rank, world_size=2)
        seen += [(item["seq_id"], item["row_start"]) for numbers in plan for item in ds.__getitems__(numbers)]
    assert sorted(seen) == [(s, k) for s, n in enumerate(LENGTHS) for k in range(n - 1)]
    with pytest.raises(PlanError, match="another selection"):
        plan.load_state_dict(BatchPlan(WindowDataset(selection, FIELDS, length=2), 5).state_dict())


def test_the_seed_is_the_manifest_s_unless_given(selection, tmp_path):
    manifest = selection.pin(tmp_path / "a.manifest.parquet", seed=3)
    assert WindowDataset(selection, FIELDS, length=4).seed is None
    assert WindowDataset(manifest, FIELDS, length=4).seed == 3
    assert BatchPlan(WindowDataset(manifest, FIELDS, length=4), 2).seed == 3
    assert WindowDataset(manifest, FIELDS, length=4, seed=8).seed == 8


def drawn_windows(ds) -> list[tuple[int, int]]:
    return [(item["seq_id"], item["row_start"]) for item in ds]


def test_drawn_windows_start_at_any_row_and_differ_by_epoch_and_seed(selection):
    ds = WindowDataset(selection, FIELDS, length=4, draw=400, seed=1)
    assert len(ds) == 400
    first = drawn_windows(ds)
    assert set(first) == {(s, k) for s, n in enumerate(LENGTHS) for k in range(n - 3)}
    ds.set_epoch(1)
    second = drawn_windows(ds)
    ds.set_epoch(0)
    assert first == drawn_windows(ds) != second
    assert first != drawn_windows(WindowDataset(selection, FIELDS, length=4, draw=400, seed=2))
    for item in ds:
        assert rows_of(item)[0] == item["seq_id"] * 100 + item["row_start"]


def test_drawn_windows_may_keep_to_a_stride_and_take_short_sequences(selection):
    ds = WindowDataset(selection, FIELDS, length=8, stride=5, draw=300, draw_by="sequences", partial="keep")
    found = {(item["seq_id"], item["row_start"], item["length"]) for item in ds}
    of_long = {(3, k, min(8, 25 - k)) for k in (0, 5, 10, 15, 20)}
    assert found == {(0, 0, 3), (1, 0, 8), (1, 5, 5), (2, 0, 1), (4, 0, 7)} | of_long


# -- refusals -------------------------------------------------------------------------------------------------


def test_sequences_that_are_all_too_short_are_refused_at_construction(selection):
    with pytest.raises(
        SequenceTooShortError,
        match=r"no sequence has the 28 rows that a window needs \(context 2, length 20, horizon 6\); "
        r"the longest of 5 has 25. Hint: give a smaller length",
    ):
        WindowDataset(
            selection,
            {"x": "f0", "y": "f0"},
            length=20,
            context=2,
            horizon=6,
            parts={"x": "context", "y": "horizon"},
        )
    with pytest.raises(SequenceTooShortError):
        WindowDataset(selection, FIELDS, length=26, draw=3)
    assert len(WindowDataset(selection, FIELDS, length=25)) == 1


def test_how_many_sequences_are_too_short_is_said(selection):
    ds = WindowDataset(selection, FIELDS, length=8)
    assert (ds.n_sequences, ds.n_sequences_without_window) == (5, 3)
    assert (
        repr(ds)
        == "WindowDataset(4 windows of 8 rows from 5 sequences, 3 of them too short; x: torch.float32)"
    )
    assert WindowDataset(selection, FIELDS, length=8, partial="pad").n_sequences_without_window == 0
    assert "2 windows of 8 rows drawn by sequences" in repr(
        WindowDataset(selection, FIELDS, length=8, draw=2, draw_by="sequences")
    )


def test_an_empty_selection_has_no_windows(index):
    empty = index.select("SELECT seq_id FROM index WHERE seq_id < 0")
    for options in ({}, {"draw": 5}):
        ds = WindowDataset(empty, FIELDS, length=4, **options)
        assert (len(ds), ds.max_item_nbytes, ds.row_counts.tolist()) == (0, 0, [])
        with pytest.raises(PlanError, match="the selection is empty"):
            BatchPlan(ds)


@pytest.mark.parametrize("name", ["row_start", "context_mask", "horizon_mask"])
def test_names_of_a_window_itself_are_refused(selection, index, name):
    with pytest.raises(UsageError, match=f"the name '{name}' is taken: a window has row_start"):
        WindowDataset(selection, {name: "f0"}, length=4)
    with pytest.raises(UsageError, match="with AS"):
        WindowDataset(index.select(f"SELECT seq_id, row_count AS {name} FROM index"), FIELDS, length=4)


def test_a_mask_of_a_field_may_not_be_called_as_the_mask_of_a_part(selection):
    with pytest.raises(UsageError, match="the name 'context_mask' is taken"):
        WindowDataset(selection, {"context": "f0"}, length=4, nulls=("fill", 0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length=0 makes no sense"),
        ({"length": 4, "draw": 0}, "draw=0 makes no sense"),
        ({"length": 4, "draw_by": "sequences"}, "draw_by='sequences' is given without draw"),
        ({"length": 4, "draw": 4, "draw_by": "rows"}, "draw_by='rows' is not known"),
        ({"length": 4, "seed": -1}, "seed=-1 makes no sense"),
        ({"length": 4, "horizon": 2}, "horizon=2 is asked for and no field takes it"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(selection, options, message):
    with pytest.raises(UsageError, match=message):
        WindowDataset(selection, FIELDS, **options)


def test_an_epoch_that_makes_no_sense_is_refused(selection):
    with pytest.raises(UsageError, match="epoch=-1 makes no sense"):
        WindowDataset(selection, FIELDS, length=4, draw=1).set_epoch(-1)


def test_what_is_no_selection_is_refused():
    with pytest.raises(UsageError, match="expected a Selection or Manifest"):
        WindowDataset("train.manifest.parquet", FIELDS, length=4)
