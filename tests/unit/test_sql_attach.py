"""Tables attached by name: every source comes out as the same plain Arrow table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as pds
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from pqindex.errors import NotFoundError, QueryError
from pqindex.sql import LockedDatabase, attached_tables, check_query

TABLE = pa.table({"seq_id": [3, 1, 2], "label": ["a", None, "ü"], "y": [0.5, 1.5, None]})


def write_parquet(path: Path) -> str:
    pq.write_table(TABLE, path / "t.parquet")
    return str(path / "t.parquet")


def write_csv(path: Path) -> Path:
    (path / "t.csv").write_text("seq_id,label,y\n3,a,0.5\n1,,1.5\n2,ü,\n")
    return path / "t.csv"


def write_feather(path: Path) -> Path:
    pyarrow.feather.write_feather(TABLE, str(path / "t.feather"))
    return path / "t.feather"


def write_stream(path: Path) -> Path:
    with pa.ipc.new_stream(str(path / "t.arrow"), TABLE.schema) as writer:
        writer.write_table(TABLE)
    return path / "t.arrow"


SOURCES: dict[str, Callable[[Path], object]] = {
    "parquet": write_parquet,
    "feather": write_feather,
    "arrow stream": write_stream,
    "table": lambda _: TABLE,
    "record batch": lambda _: TABLE.combine_chunks().to_batches()[0],
    "reader": lambda _: TABLE.to_reader(),
    "dataset": lambda _: pds.dataset(TABLE),
    "pandas": lambda _: pd.DataFrame({"seq_id": [3, 1, 2], "label": ["a", None, "ü"], "y": [0.5, 1.5, None]}),
    "polars": lambda _: pl.from_arrow(TABLE),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_table(tmp_path: Path, kind: str) -> None:
    tables = attached_tables({"labels": SOURCES[kind](tmp_path)})
    assert tables["labels"].schema == TABLE.schema
    assert tables["labels"].schema.metadata is None
    assert tables["labels"].to_pydict() == TABLE.to_pydict()


def test_csv(tmp_path: Path) -> None:
    table = attached_tables({"labels": write_csv(tmp_path)})["labels"]
    assert table.to_pydict() == TABLE.to_pydict() | {"label": ["a", "", "ü"]}


def test_case_7_zeros_before_a_number_make_it_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("seq_id,n,x,zip\n007,0,0.5,1\n010,10,-0.5,\n2,-3,1,02\n")
    table = attached_tables({"t": path})["t"]
    assert table.schema.types == [pa.string(), pa.int64(), pa.float64(), pa.string()]
    assert table.column("seq_id").to_pylist() == ["007", "010", "2"]
    assert table.column("zip").to_pylist() == ["1", None, "02"]


def test_T30_encodings_come_off() -> None:
    table = pa.table(
        {
            "a": pa.array(["x", None]).dictionary_encode(),
            "b": pa.array(["x", None], pa.large_string()),
            "c": pa.array([["x"], None], pa.large_list(pa.string_view())),
            "d": pa.array([{"k": "x"}, None], pa.struct([("k", pa.large_string())])),
            "e": pa.array([[("k", "v")], None], pa.map_(pa.string_view(), pa.large_string())),
            "f": pa.array([["x", "y"], None], pa.list_(pa.large_string(), 2)),
        }
    ).replace_schema_metadata({"k": "v"})
    plain = attached_tables({"t": table})["t"]
    assert plain.schema == pa.schema(
        [
            ("a", pa.string()),
            ("b", pa.string()),
            ("c", pa.list_(pa.string())),
            ("d", pa.struct([("k", pa.string())])),
            ("e", pa.map_(pa.string(), pa.string())),
            ("f", pa.list_(pa.string(), 2)),
        ]
    )
    assert plain.to_pydict() == table.to_pydict()


def test_pandas_row_labels_come_along_only_with_a_name() -> None:
    frame = pd.DataFrame({"y": [1.0, 2.0]}, index=[5, 7])
    assert attached_tables({"t": frame})["t"].column_names == ["y"]
    named = frame.rename_axis("seq_id")
    assert attached_tables({"t": named})["t"].to_pydict() == {"y": [1.0, 2.0], "seq_id": [5, 7]}


def test_attached_tables_join(tmp_path: Path) -> None:
    index = pa.table({"seq_id": [1, 2, 3], "seq_no": [0, 1, 2]})
    tables = attached_tables(
        {"labels": write_parquet(tmp_path), "weights": pl.DataFrame({"seq_id": [1, 3], "w": [2, 4]})}
    )
    with LockedDatabase({"index": index, **tables}) as database:
        sql = "SELECT seq_id, label, w FROM index JOIN labels USING (seq_id) JOIN weights USING (seq_id) ORDER BY w"
        answer = database.execute(check_query(sql, relations=database.schemas))
    assert answer.to_pylist() == [{"seq_id": 1, "label": None, "w": 2}, {"seq_id": 3, "label": "a", "w": 4}]


# -- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a b", "1a", "", "a.b", 'a"b', "ü", "select", "order", "x; DROP TABLE t", 3]
)
def test_names_that_need_quotes_are_refused(name: object) -> None:
    with pytest.raises(QueryError, match="cannot be written in a query without quotes"):
        attached_tables({name: TABLE})  # type: ignore[dict-item]


@pytest.mark.parametrize("name", ["index", "Index", "FILES", "row_groups", "segments", "snapshots"])
def test_names_of_the_index_are_taken(name: str) -> None:
    with pytest.raises(QueryError, match=f"the name '{name}' is taken"):
        attached_tables({name: TABLE})


def test_two_names_that_differ_in_case_are_one() -> None:
    with pytest.raises(QueryError, match="the name 'LABELS' is taken"):
        attached_tables({"labels": TABLE, "LABELS": TABLE})
    assert list(attached_tables({"labels": TABLE, "index": TABLE}, reserved=())) == ["labels", "index"]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(
        NotFoundError, match=r"the file attached as 't' is not there: .*nowhere\.parquet"
    ) as caught:
        attached_tables({"t": tmp_path / "nowhere.parquet"})
    assert isinstance(caught.value, FileNotFoundError)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for name in ("t.parquet", "t.feather"):
        (tmp_path / name).write_bytes(b"not what it says")
        with pytest.raises(QueryError, match=r"the file attached as 't' is not readable (parquet|feather)"):
            attached_tables({"t": tmp_path / name})
    (tmp_path / "t.csv").write_bytes(b"a,b\n1\n2,3,4\n")
    with pytest.raises(QueryError, match="is not readable csv"):
        attached_tables({"t": tmp_path / "t.csv"})
    (tmp_path / "empty.csv").write_bytes(b"")
    with pytest.raises(QueryError, match="is not readable csv"):
        attached_tables({"t": tmp_path / "empty.csv"})
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n")
    with pytest.raises(QueryError, match="two columns have one name"):
        attached_tables({"t": tmp_path / "twice.csv"})
    (tmp_path / "t.xlsx").write_bytes(b"")
    with pytest.raises(QueryError, match=r"expected a file ending in \.parquet, \.csv, \.arrow, \.feather"):
        attached_tables({"t": tmp_path / "t.xlsx"})
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(QueryError, match="expected a file"):
        attached_tables({"t": tmp_path / "folder.parquet"})


@pytest.mark.parametrize("source", [3, None, [1, 2], {"a": [1]}, object()])
def test_other_objects_are_refused(source: object) -> None:
    with pytest.raises(QueryError, match=f"cannot attach a {type(source).__name__} as 't'"):
        attached_tables({"t": source})


def test_an_object_whose_stream_fails() -> None:
    class Broken:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise ValueError("no rows today")

    with pytest.raises(QueryError, match="the attached table 't' cannot be read: no rows today"):
        attached_tables({"t": Broken()})


def test_columns_of_one_name_are_refused() -> None:
    with pytest.raises(QueryError, match=r"the attached table 't' has columns that .*: 'a', 'A'"):
        attached_tables({"t": pa.table({"a": [1], "A": [2]})})


def test_T28_members_of_a_struct_of_one_name_are_refused_at_any_depth() -> None:
    inner = pa.array([[{"b": {"a": 1, "A": 2}}]])
    with pytest.raises(
        QueryError, match=r"the attached table 't' has members .*: 's.b.a', 's.b.A'"
    ) as caught:
        attached_tables({"t": pa.table({"s": inner})})
    assert caught.value.columns == ["s.b.a", "s.b.A"]
