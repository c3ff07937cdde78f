"""SequenceDataset over a reader in memory: items, names, lengths, checks at construction."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import pqindex.torch.dataset
from pqindex.errors import (
    ColumnMissingError,
    ColumnTypeError,
    NonFiniteError,
    NotConstantError,
    NullValueError,
    RaggedListError,
    SelectionIndexError,
    SequenceTooLongError,
    UsageError,
)
from pqindex.pieces import Piece, Round
from pqindex.reader import Segment
from pqindex.torch import Cast, SequenceDataset, collate_padded


@dataclass
class Source:
    """Sequences in memory."""

    tables: list[pa.Table]
    seq_ids: list[Any]
    extra: pa.Table | None = None
    digest: str = "d" * 64
    readers: list[Reader] = field(default_factory=list)
    read_plan: None = None  # what tells a selection


class Reader:
    """The protocol of `pqindex.Reader`, in memory."""

    def __init__(self, source, columns, *, max_open_files, staleness):
        self.columns = columns
        self.options = {"max_open_files": max_open_files, "staleness": staleness}
        self.tables = [table.select(columns) for table in source.tables]
        self.schema = (
            pa.schema([source.tables[0].schema.field(name) for name in columns])
            if source.tables
            else pa.schema([])
        )
        self.seq_ids = pa.array(source.seq_ids)
        self.row_counts = np.array([table.num_rows for table in source.tables], np.int64)
        n = len(source.tables)
        self.extra = pa.table({"": pa.nulls(n)}).select([]) if source.extra is None else source.extra
        self.digest = source.digest
        self.asked: list[Any] = []
        source.readers.append(self)

    def __len__(self):
        return len(self.tables)

    def __getitem__(self, position):
        self.asked.append(position)
        return self.tables[position]

    def fetch_rows(self, requests):
        """Nothing to decode: every sequence is kept as a table."""
        tables = self.read_rows(requests)
        pieces = [
            Piece(position, start, stop, number, 0) for number, (position, start, stop) in enumerate(requests)
        ]
        return [Round([], list(zip(pieces, tables, strict=True)))]

    def read(self, positions):
        return self.read_rows([(position, 0, self.tables[position].num_rows) for position in positions])

    def read_rows(self, requests):
        self.asked.append(tuple(position for position, _, _ in requests))
        return [self.tables[position].slice(start, stop - start) for position, start, stop in requests]

    def segments(self, position):
        return [
            Segment(file=f"{position}.parquet", row_group=row, row_start=0, row_stop=1)
            for row in range(self.tables[position].num_rows)
        ]

    def close(self):
        self.asked.append("close")


@pytest.fixture(autouse=True)
def _reader_in_memory(monkeypatch):
    monkeypatch.setattr(pqindex.torch.dataset, "Reader", Reader)


def table(n, start=0, **more) -> pa.Table:
    steps = np.arange(start, start + n)
    columns = {"step": steps, "f0": steps + 0.5, "f1": steps * 10.0, "y0": steps % 2}
    return pa.table({name: pa.array(values) for name, values in (columns | more).items()})


@pytest.fixture
def source() -> Source:
    return Source([table(3), table(4, 3)], [17, 23])


XY = {"x": ["f0", "f1"], "y": ["y0"]}


def test_L2_L22_the_lesson_s_fixture(source):
    ds = SequenceDataset(source, XY)
    assert len(ds) == 2
    assert [(item["seq_id"], item["length"], item["x"].shape, item["y"].shape) for item in ds] == [
        (17, 3, (3, 2), (3, 1)),
        (23, 4, (4, 2), (4, 1)),
    ]
    item = ds[1]
    assert item["x"].dtype == item["y"].dtype == torch.float32
    assert item["x"].tolist() == [[3.5, 30], [4.5, 40], [5.5, 50], [6.5, 60]]
    assert list(item) == ["x", "y", "seq_id", "length"]


def test_L4_each_column_is_asked_for_once_in_the_order_of_the_fields(source):
    SequenceDataset(source, {"x": ["f1", "y0"], "y": "y0", "t": "step", "z": ["f0", "f1"]})
    assert source.readers[-1].columns == ["f1", "y0", "step", "f0"]


def test_L15_no_name_is_hard_coded():
    odd = pa.table({"a.b": [1.0], "": [2.0], 'Ünï "q"': [3.0], "A.b": [4.0]})
    ds = SequenceDataset(Source([odd], ["s"]), {"x": ["A.b", "", "a.b"], "length of it": 'Ünï "q"'})
    assert ds[0]["x"].tolist() == [[4, 2, 1]]
    assert ds[0]["length of it"].tolist() == [3]


def double_state(item):
    return item["state"] * 2


def test_A13_fields_rename_cast_and_transform(source):
    ds = SequenceDataset(
        source,
        {"state": "f0", "label": "y0"},
        dtype={"label": torch.int64},
        transform=[Cast({"state": torch.int64}, lossy=True), double_state],
    )
    assert ds[0].tolist() == [0, 2, 4]
    assert (
        SequenceDataset(source, {"label": "y0"}, dtype={"label": torch.int64})[0]["label"].dtype
        == torch.int64
    )


def test_options_go_to_the_reader(source):
    SequenceDataset(source, XY, max_open_files=3, staleness="ignore")
    assert source.readers[-1].options == {"max_open_files": 3, "staleness": "ignore"}


def test_case_15_positions_are_those_of_the_selection_and_never_ids():
    ds = SequenceDataset(Source([table(k + 1) for k in range(5)], list(range(200, 205))), XY)
    assert [ds[i]["seq_id"] for i in range(5)] == [200, 201, 202, 203, 204]
    assert [ds[i]["length"] for i in range(5)] == [1, 2, 3, 4, 5]
    with pytest.raises(
        SelectionIndexError, match=r"position 200 is outside the selection of 5 sequences.*not sequence ids"
    ):
        ds[200]


def test_negative_positions_count_from_the_end(source):
    ds = SequenceDataset(source, XY)
    assert ds[-1]["seq_id"] == 23
    assert ds[-2]["seq_id"] == 17
    with pytest.raises(SelectionIndexError):
        ds[-3]


@pytest.mark.parametrize("index", [np.int64(1), torch.tensor(1), np.uint8(1)])
def test_positions_may_be_integers_of_numpy_and_torch(source, index):
    assert SequenceDataset(source, XY)[index]["seq_id"] == 23


@pytest.mark.parametrize("index", [1.0, "1", slice(0, 1), None, [0]])
def test_what_is_no_position_is_refused(source, index):
    with pytest.raises(UsageError, match="expected an integer position"):
        SequenceDataset(source, XY)[index]


def test_getitems_reads_together_and_keeps_the_order(source):
    ds = SequenceDataset(source, XY)
    items = ds.__getitems__([1, 0, -1])
    assert [item["seq_id"] for item in items] == [23, 17, 23]
    assert source.readers[-1].asked == [(1, 0, 1)]
    assert torch.equal(items[0]["x"], ds[1]["x"])
    assert ds.__getitems__([]) == []


def test_the_query_s_columns_ride_along(source):
    source.extra = pa.table(
        {"label": ["a", None], "weight": [0.5, 2.0], "day": pa.array([1, 2], pa.date32())}
    )
    item = SequenceDataset(source, {"x": ["f0"]})[1]
    assert list(item) == ["x", "seq_id", "length", "label", "weight", "day"]
    assert (item["label"], item["weight"], str(item["day"])) == (None, 2.0, "1970-01-03")


@pytest.mark.parametrize(
    "ids", [["a", "b"], [b"\x00", b"\xff"], [-1, -2], pa.array([2**63 + 5, 0], pa.uint64())]
)
def test_ids_are_the_key_s_own_values(source, ids):
    source.seq_ids = ids
    ds = SequenceDataset(source, {"x": "f0"})
    expected = ids.to_pylist() if isinstance(ids, pa.Array) else ids
    assert [ds[0]["seq_id"], ds[1]["seq_id"]] == expected
    assert ds.seq_ids.to_pylist() == expected


def test_masks_come_with_fill_policies(source):
    source.tables[0] = table(3, f0=[1.0, None, 3.0])
    item = SequenceDataset(source, XY, nulls={"x": ("fill", 0.0)})[0]
    assert list(item) == ["x", "x_mask", "y", "seq_id", "length"]
    assert item["x_mask"].tolist() == [[True, True], [False, True], [True, True]]


def test_text_rides_along_as_a_list(source):
    source.tables[0] = table(2, word=["a", "b"])
    source.tables[1] = table(1, word=["c"])
    item = SequenceDataset(source, {"x": "f0", "word": "word"})[0]
    assert item["word"] == ["a", "b"]


def test_L12_an_error_names_file_row_group_and_sequence(source):
    source.tables[1] = table(2, f1=[1.0, None])
    ds = SequenceDataset(source, XY)
    assert ds[0]["length"] == 3
    for read in (lambda: ds[1], lambda: ds.__getitems__([0, 1])):
        with pytest.raises(
            NullValueError, match=r"1.parquet, row group 1: .*field 'x', column 'f1', sequence 23, row 1"
        ) as caught:
            read()
        assert (caught.value.file, caught.value.row_group, caught.value.row) == ("1.parquet", 1, 1)


# -- lists as time --------------------------------------------------------------------------------------------


def documents(*rows, seq_ids=(17, 23), **more) -> Source:
    """Sequences that are rows of lists: tokens, scores, a vector a token, a label, words."""
    tables = [
        pa.table(
            {
                "tokens": pa.array(tokens, pa.list_(pa.int32())),
                "scores": pa.array([[t + 0.5 for t in row] for row in tokens], pa.list_(pa.float32())),
                "vectors": pa.array(
                    [[[t, -t] for t in row] for row in tokens], pa.list_(pa.list_(pa.int32()))
                ),
                "words": pa.array([[str(t) for t in row] for row in tokens], pa.list_(pa.string())),
                "label": ["spam"] * len(tokens),
                "weight": pa.array([0.5] * len(tokens)),
            }
        )
        for tokens in rows
    ]
    return Source(tables, list(seq_ids), **more)


TOKENS = {"ids": "tokens", "x": ["tokens", "scores", "vectors"], "v": "vectors"}


def test_lists_as_time_give_the_shapes_that_rows_would_give():
    ds = SequenceDataset(
        documents([[1, 2, 3]], [[4]]),
        TOKENS | {"words": "words", "label": "label", "weight": "weight"},
        dtype={"ids": torch.int64},
        lists="time",
    )
    item = ds[0]
    assert (item["ids"].dtype, item["ids"].tolist()) == (torch.int64, [1, 2, 3])
    assert item["x"].tolist() == [[1, 1.5, 1, -1], [2, 2.5, 2, -2], [3, 3.5, 3, -3]]
    assert item["v"].shape == (3, 2)
    assert (item["words"], item["label"]) == (["1", "2", "3"], "spam")
    assert (item["weight"].shape, item["weight"].item()) == ((), 0.5)
    assert item["length"] == 3
    assert [other["length"] for other in ds.__getitems__([1, 0])] == [1, 3]


def test_lists_of_several_rows_follow_each_other():
    item = SequenceDataset(documents([[1, 2], [], [3]], [[4]]), TOKENS | {"label": "label"}, lists="time")[0]
    assert (item["ids"].tolist(), item["length"], item["label"]) == ([1, 2, 3], 3, "spam")


def test_a_sequence_without_steps():
    item = SequenceDataset(documents([[]], [[4]]), {"ids": "tokens", "x": ["tokens"]}, lists="time")[0]
    assert (item["ids"].shape, item["x"].shape, item["length"]) == ((0,), (0, 1), 0)


def test_items_of_lists_are_padded_as_others_and_values_of_a_sequence_are_stacked():
    ds = SequenceDataset(
        documents([[1, 2, 3]], [[4]]), {"ids": "tokens", "label": "label", "weight": "weight"}, lists="time"
    )
    batch = collate_padded([ds[0], ds[1]])
    assert batch["ids"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert (batch["weight"].tolist(), batch["label"]) == ([0.5, 0.5], ["spam", "spam"])
    assert batch["lengths"].tolist() == [3, 1]


def test_an_error_in_a_list_names_step_row_and_row_group():
    source = documents([[1, 2], [3]], [[4]])
    values = pa.array([[1.0, 2.0], [float("inf")]], pa.list_(pa.float32()))
    source.tables[0] = source.tables[0].set_column(1, "scores", values)
    with pytest.raises(
        NonFiniteError,
        match=r"0.parquet, row group 1: .*field 's', column 'scores', sequence 17, step 2; found inf",
    ) as error:
        SequenceDataset(source, {"s": "scores"}, lists="time")[0]
    assert (error.value.step, error.value.row, error.value.row_group) == (2, 1, 1)


def test_nulls_in_lists_follow_the_field_s_policy_and_null_lists_are_refused():
    source = documents([[1, 2]], [[4]])
    values = pa.array([[1.0, None]], pa.list_(pa.float32()))
    source.tables[0] = source.tables[0].set_column(1, "scores", values)
    item = SequenceDataset(source, {"s": "scores"}, nulls=("fill", -1), lists="time")[0]
    assert (item["s"].tolist(), item["s_mask"].tolist()) == ([1, -1], [True, False])
    source.tables[0] = source.tables[0].set_column(1, "scores", pa.array([None], pa.list_(pa.float32())))
    with pytest.raises(
        NullValueError, match="row group 0: a list is null: column 'scores', sequence 17, row 0"
    ):
        SequenceDataset(source, {"s": "scores"}, nulls=("fill", -1), lists="time")[0]


def test_lists_of_other_lengths_and_labels_that_differ_name_their_place():
    source = documents([[1, 2], [3]], [[4]])
    ragged = pa.array([[1.0, 2.0], []], pa.list_(pa.float32()))
    source.tables[0] = source.tables[0].set_column(1, "scores", ragged)
    with pytest.raises(
        RaggedListError, match=r"row group 1: .*column 'scores' and column 'tokens', sequence 17, row 1"
    ):
        SequenceDataset(source, {"x": ["tokens", "scores"]}, lists="time")[0]
    source.tables[0] = source.tables[0].set_column(4, "label", pa.array(["spam", "ham"]))
    with pytest.raises(
        NotConstantError, match="field 'y', column 'label', sequence 17; found 'spam' and 'ham'"
    ):
        SequenceDataset(source, {"ids": "tokens", "y": "label"}, lists="time")[0]


def test_L7_the_length_of_lists_is_a_column_of_the_query():
    source = documents([[1, 2, 3]], [[4]], extra=pa.table({"n": [3, 1]}))
    ds = SequenceDataset(
        source,
        TOKENS | {"weight": "weight"},
        lists="time",
        length="n",
        max_rows=3,
        nulls={"ids": ("fill", 0)},
    )
    for position in (0, 1):
        item = ds[position]
        tensors = [value for value in item.values() if isinstance(value, torch.Tensor)]
        assert sum(tensor.nbytes for tensor in tensors) == ds.item_nbytes(position)
    assert ds.max_item_nbytes == ds.item_nbytes(0)
    readers = len(source.readers)
    with pytest.raises(
        SequenceTooLongError, match=r"more than max_rows=2 steps; sequences \(steps\): 17 \(3\).*WHERE n <= 2"
    ):
        SequenceDataset(source, TOKENS, lists="time", length="n", max_rows=2)
    assert source.readers[readers].asked == []


def test_a_sequence_of_another_length_than_the_query_says_is_an_error():
    ds = SequenceDataset(
        documents([[1, 2, 3]], [[4]], extra=pa.table({"n": [2, 1]})), TOKENS, lists="time", length="n"
    )
    assert ds[1]["length"] == 1
    with pytest.raises(
        RaggedListError, match=r"0.parquet.*column 'n' of the query says: sequence 17; expected 2, found 3"
    ):
        ds[0]


def test_without_a_length_only_a_read_tells():
    ds = SequenceDataset(documents([[1, 2, 3]], [[4]]), TOKENS, lists="time", max_rows=2)
    assert ds[1]["length"] == 1
    with pytest.raises(
        SequenceTooLongError, match=r"0.parquet.*sequence 17 has 3 steps, more than max_rows=2"
    ):
        ds[0]
    for size in (lambda: ds.item_nbytes(0), lambda: ds.max_item_nbytes):
        with pytest.raises(UsageError, match=r"nothing says how many steps.*length="):
            size()


def test_a_length_that_makes_no_sense_is_refused():
    source = documents([[1]], [[4]], extra=pa.table({"n": [1, None], "w": ["a", "b"]}))
    for length, error, message in [
        ("m", ColumnMissingError, "length='m' is no column of the query, whose other columns are: 'n', 'w'"),
        ("n", ColumnTypeError, "must be a column of integers without nulls; found 1 nulls"),
        ("w", ColumnTypeError, "must be a column of integers without nulls; found string"),
    ]:
        with pytest.raises(error, match=message):
            SequenceDataset(source, TOKENS, lists="time", length=length)
    with pytest.raises(UsageError, match="length='n' is for lists='time'"):
        SequenceDataset(source, TOKENS, length="n")


# -- lengths and sizes ----------------------------------------------------------------------------------------


def test_L7_a_sequence_longer_than_max_rows_is_refused_before_anything_is_read(source):
    with pytest.raises(
        SequenceTooLongError, match=r"1 of 2 sequences have more than max_rows=3 rows; .*: 23 \(4\)"
    ) as error:
        SequenceDataset(source, XY, max_rows=3)
    assert error.value.sequences == ((23, 4),)
    assert "WHERE row_count <= 3" in error.value.hint
    assert source.readers[-1].asked == []
    assert len(SequenceDataset(source, XY, max_rows=4)) == 2


def test_L7_the_first_ten_are_listed_and_all_are_counted():
    ds = Source([table(k) for k in range(20)], [f"s{k}" for k in range(20)])
    with pytest.raises(SequenceTooLongError) as error:
        SequenceDataset(ds, XY, max_rows=4)
    assert "15 of 20 sequences" in str(error.value)
    assert "'s5' (5), 's6' (6)" in str(error.value)
    assert "'s14' (14), and 5 more" in str(error.value)
    assert error.value.n_sequences == 15


@pytest.mark.parametrize("max_rows", [0, -1, 2.5, True, "3"])
def test_a_max_rows_that_makes_no_sense_is_refused(source, max_rows):
    with pytest.raises(UsageError, match="max_rows="):
        SequenceDataset(source, XY, max_rows=max_rows)


def test_L6_L29_the_bytes_of_an_item_are_known_without_reading_it(source):
    ds = SequenceDataset(source, XY, dtype={"y": torch.int64}, nulls={"x": ("fill", 0)})
    assert [ds.item_nbytes(0), ds.item_nbytes(-1)] == [3 * (2 * 4 + 2 + 8), 4 * (2 * 4 + 2 + 8)]
    assert ds.max_item_nbytes == 72
    assert source.readers[-1].asked == []
    for i, item in enumerate(ds):
        assert sum(
            value.nbytes for value in item.values() if isinstance(value, torch.Tensor)
        ) == ds.item_nbytes(i)


def test_L29_lists_of_no_fixed_size_are_learnt_from_one_read(source):
    source.tables = [table(n, v=[[1.0, 2.0]] * n, word=["a"] * n) for n in (3, 4)]
    ds = SequenceDataset(source, {"v": ["v", "f0"], "x": "f1", "word": "word"})  # text counts nothing
    assert ds.max_item_nbytes == 4 * 4 * 4
    assert ds.item_nbytes(0) == 4 * 4 * 3
    assert source.readers[-1].asked == [0]


def test_an_empty_selection_has_no_items():
    empty = Source([], [])
    schema = pa.schema([("f0", pa.float64())])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            pqindex.torch.dataset,
            "Reader",
            lambda *a, **k: _with_schema(Reader(empty, [], max_open_files=1, staleness=""), schema),
        )
        ds = SequenceDataset(empty, {"x": "f0"})
    assert (len(ds), ds.max_item_nbytes) == (0, 0)
    with pytest.raises(IndexError):
        ds[0]


def _with_schema(reader, schema):
    reader.schema = schema
    return reader


# -- names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["seq_id", "length", "lengths", "mask"])
def test_names_of_the_item_itself_are_refused(source, name):
    with pytest.raises(UsageError, match=f"the name '{name}' of a field is taken"):
        SequenceDataset(source, {name: "f0"})
    source.extra = pa.table({name: [1, 2]})
    with pytest.raises(UsageError, match=f"the name '{name}' of a column of the query is taken.*with AS"):
        SequenceDataset(source, {"x": "f0"})


def test_a_name_given_twice_is_refused(source):
    source.extra = pa.table({"x": [1, 2]})
    with pytest.raises(UsageError, match="the name 'x' of a column of the query is taken"):
        SequenceDataset(source, {"x": "f0"})
    source.extra = None
    with pytest.raises(UsageError, match="the name 'x_mask' of a mask is taken"):
        SequenceDataset(source, {"x": "f0", "x_mask": "f1"}, nulls=("fill", 0))
    SequenceDataset(source, {"x": "f0", "x_mask": "f1"})


# -- wrong use ------------------------------------------------------------------------------------------------


def test_L13_empty_fields_are_refused_before_a_reader_is_made(source):
    for fields in ({}, {"x": []}):
        with pytest.raises(UsageError):
            SequenceDataset(source, fields)
    assert source.readers == []


@pytest.mark.parametrize("source", ["train.manifest.parquet", [0], None])
def test_what_is_no_selection_is_refused(source):
    with pytest.raises(UsageError, match=r"expected a Selection or Manifest.*load_manifest"):
        SequenceDataset(source, XY)


def test_lists_are_rows_or_time(source):
    with pytest.raises(UsageError, match="lists='columns' is not known: expected 'rows' or 'time'"):
        SequenceDataset(source, XY, lists="columns")


def test_a_transform_that_does_not_pickle_is_refused_before_a_reader_is_made(source):
    with pytest.raises(UsageError, match=r"cannot be sent to worker processes.*lambda"):
        SequenceDataset(source, XY, transform=lambda item: item)
    assert source.readers == []


def test_a_transform_that_cannot_be_called_is_refused(source):
    with pytest.raises(UsageError, match="transform=3 cannot be called"):
        SequenceDataset(source, XY, transform=3)


def test_T9_a_dataset_holds_no_python_list_of_sequences(source):
    ds = SequenceDataset(source, XY)
    held = {name: value for name, value in vars(ds).items() if name != "_reader"}
    assert not [value for value in held.values() if isinstance(value, list)]
    assert len(pickle.dumps(held)) < 3_000


def test_close_closes_the_reader(source):
    SequenceDataset(source, XY).close()
    assert source.readers[-1].asked == ["close"]


def test_the_repr_says_what_it_is(source):
    source.tables = [table(3, w=["a"] * 3), table(4, w=["a"] * 4)]
    text = repr(SequenceDataset(source, {"x": "f0", "w": "w"}))
    assert text == "SequenceDataset(2 sequences; x: torch.float32, w: text)"
