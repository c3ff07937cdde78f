"""Arrow in and out of DuckDB: nothing rounded, nothing cut, nothing renamed in silence."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pqindex.errors import QueryError
from pqindex.sql import LockedDatabase, check_query
from pqindex.sql.engine import DUCKDB_MAJOR
from pqindex.sql.plain import convert, distinct_names, has_floats, is_loadable, loadable_table


def answer(sql: str, **relations: pa.Table) -> pa.Table:
    with LockedDatabase(relations) as database:
        return database.execute(check_query(sql, relations=database.schemas))


# -- out ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "expected", "value"),
    [
        ("sum(x)", pa.int64(), 3),
        ("count(*)", pa.int64(), 3),
        ("list(x::HUGEINT)", pa.list_(pa.int64()), [0, 1, 2]),
        (
            "{'a': sum(x), 'b': [sum(x)]}",
            pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int64()))]),
            {"a": 3, "b": [3]},
        ),
        ("map {'k': sum(x)}", pa.map_(pa.string(), pa.int64()), [("k", 3)]),
        ("sum(x)::DECIMAL(38, 0)", pa.decimal128(38, 0), decimal.Decimal(3)),
        ("sum(x::DECIMAL(5, 1))", pa.decimal128(38, 1), decimal.Decimal("3.0")),
        ("avg(x)", pa.float64(), 1.0),
        ("max(x)::FLOAT", pa.float32(), 2.0),
        ("NULL", pa.int32(), None),
        ("[]", pa.list_(pa.int32()), []),
        ("'b'::ENUM('a', 'b')", pa.string(), "b"),
        ("['b'::ENUM('a', 'b')]", pa.list_(pa.string()), ["b"]),
        ("'x'::BLOB", pa.binary(), b"x"),
        ("[1, 2]::INTEGER[2]", pa.list_(pa.int32(), 2), [1, 2]),
        ("'a'::JSON", pa.string(), "a"),
        ("'00000000-0000-0000-0000-000000000001'::UUID", pa.string(), "00000000-0000-0000-0000-000000000001"),
        ("18446744073709551615::UBIGINT", pa.uint64(), 2**64 - 1),
        (
            "row(1, 2)",
            pa.struct([("element1", pa.int32()), ("element2", pa.int32())]),
            {"element1": 1, "element2": 2},
        ),
    ],
)
def test_case_88_types_come_out_plain(expression: str, expected: pa.DataType, value: Any) -> None:
    if expression.startswith("'a'::JSON"):
        expression = "'\"a\"'::JSON"
        value = '"a"'
    table = answer(f"SELECT {expression} AS v FROM t", t=pa.table({"x": [0, 1, 2]})).slice(0, 1)
    assert table.schema.field("v").type == expected
    assert table.column("v").to_pylist() == [value]


def test_timestamps_with_a_zone_are_utc_on_every_machine() -> None:
    table = answer(
        "SELECT TIMESTAMPTZ '2020-01-01 00:00:00+02' AS t, '2020-01-01'::TIMESTAMPTZ::VARCHAR AS s"
    )
    assert table.schema.field("t").type == pa.timestamp("us", "UTC")
    assert table.column("s").to_pylist() == ["2020-01-01 00:00:00+00"]


@pytest.mark.parametrize(
    "expression", ["9223372036854775807::HUGEINT + x", "[9223372036854775807::HUGEINT + x]"]
)
def test_case_88_overflow_is_an_error_and_never_a_double(expression: str) -> None:
    with pytest.raises(QueryError, match="overflow: the column 'v' has integers beyond 64 bits"):
        answer(f"SELECT {expression} AS v FROM t", t=pa.table({"x": [1]}))


def test_sums_up_to_the_last_integer_are_exact() -> None:
    table = answer("SELECT sum(x) AS v FROM t", t=pa.table({"x": [2**62, 2**62 - 1]}))
    assert table.column("v").to_pylist() == [2**63 - 1]


@pytest.mark.parametrize(
    "expression",
    [
        "'101'::BIT",
        "'01:00:00+02'::TIMETZ",
        "1::UHUGEINT",
        "union_value(a := 1)",
        "INTERVAL 1 DAY",
        "[INTERVAL 1 DAY]",
        "{'a': INTERVAL 1 DAY}",
        "map {'k': INTERVAL 1 DAY}",
    ],
)
def test_types_without_a_plain_form_are_refused_by_name(expression: str) -> None:
    with pytest.raises(QueryError, match=r"the column 'v' has the type .* which has no plain form"):
        answer(f"SELECT {expression} AS v")


def test_a_length_of_time_is_cast_as_the_hint_says() -> None:
    with pytest.raises(QueryError, match=r'cast it: CAST\("v" AS VARCHAR\), or epoch\("v"\) for seconds'):
        answer("SELECT INTERVAL 90 SECOND AS v")
    assert answer("SELECT epoch(INTERVAL 90 SECOND) AS v").to_pylist() == [{"v": 90.0}]
    assert answer("SELECT CAST(INTERVAL 90 SECOND AS VARCHAR) AS v").to_pylist() == [{"v": "00:01:30"}]


# -- in -------------------------------------------------------------------------------------------------------

LOADABLE: list[tuple[str, pa.Array]] = [
    ("string_view", pa.array(["a", None, "bb"], pa.string_view())),
    ("large_string", pa.array(["a", None], pa.large_string())),
    ("large_binary", pa.array([b"\xff", None], pa.large_binary())),
    ("fixed_size_binary", pa.array([b"ab", None], pa.binary(2))),
    ("dictionary", pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.uint32()), pa.array(["a", "b"]))),
    ("dictionary of numbers", pa.array([1, 2, 1]).dictionary_encode()),
    ("runs", pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), pa.array([5, 6]))),
    ("half", pa.array(np.array([1, 2], np.float16))),
    ("decimal256", pa.array([decimal.Decimal("1.50"), None], pa.decimal256(50, 2))),
    ("uint64", pa.array([2**63 + 5, 1], pa.uint64())),
    ("int64", pa.array([2**53 + 1, None, -(2**63)])),
    ("list view", pa.array([[1], None, [2, 3]], pa.list_view(pa.int32()))),
    ("large list", pa.array([[1], None, []], pa.large_list(pa.int32()))),
    ("fixed list", pa.array([[1, 2], None], pa.list_(pa.float16(), 2))),
    ("map", pa.array([[("a", 1)], None, []], pa.map_(pa.string_view(), pa.int32()))),
    ("struct", pa.array([{"x": 1, "y": [2.5]}, None, {"x": None, "y": None}])),
    ("timestamp s", pa.array([1, None], pa.timestamp("s"))),
    ("timestamp ns", pa.array([1, None], pa.timestamp("ns"))),
    ("date32", pa.array([-(2**31), 2**31 - 1, None], pa.date32())),
    ("nulls", pa.nulls(2)),
]


@pytest.mark.parametrize(("kind", "array"), LOADABLE, ids=[kind for kind, _ in LOADABLE])
@pytest.mark.parametrize("start", [0, 1])
def test_T30_case_94_values_go_in_and_come_out_the_same(kind: str, array: pa.Array, start: int) -> None:
    array = array.slice(start)
    table = answer("SELECT v FROM t", t=pa.table({"v": array}))
    expected = pa.chunked_array([array])
    if kind in {"timestamp ns", "date32"}:
        integer = pa.int64() if kind == "timestamp ns" else pa.int32()
        assert table.column("v").cast(integer).to_pylist() == expected.cast(integer).to_pylist()
    else:
        assert table.column("v").to_pylist() == expected.to_pylist()


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1], pa.duration("ns")),
        pa.array([decimal.Decimal(10) ** 45], pa.decimal256(60, 0)),
        *(
            [pa.array([1], pa.time64("ns")), pa.array([1], pa.timestamp("ns", "UTC"))]
            if DUCKDB_MAJOR < 2
            else []
        ),
    ],
)
def test_what_duckdb_would_round_is_refused_by_name(array: pa.Array) -> None:
    with pytest.raises(QueryError, match=r"the column 'v' of 't' has the type .* cannot hold exactly"):
        answer("SELECT v FROM t", t=pa.table({"v": array}))


TWINS = pa.array([{"A": 1, "a": 2}])


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (pa.table([pa.array([1]), pa.array([2])], names=["x", "X"]), "columns .*: 'x', 'X'"),
        (pa.table({"stats": TWINS}), "members of a struct .*: 'stats.A', 'stats.a'"),
        (pa.table({"s": pa.StructArray.from_arrays([TWINS], ["b"])}), "members .*: 's.b.A', 's.b.a'"),
        (pa.table({"s": [TWINS.to_pylist()]}), "members .*: 's.A', 's.a'"),
        (
            pa.table({"s": pa.array([[("k", {"A": 1, "a": 2})]], pa.map_(pa.string(), TWINS.type))}),
            "members .*: 's.value.A', 's.value.a'",
        ),
        (
            pa.table({"s": pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])}),
            "members .*: 's.a', 's.a'",
        ),
    ],
)
def test_T28_names_that_differ_in_case_alone_are_refused_and_never_mixed_up(
    table: pa.Table, names: str
) -> None:
    with pytest.raises(QueryError, match=f"the relation 't' has {names}"):
        answer("SELECT * FROM t", t=table)
    with pytest.raises(QueryError, match="the relation 't' has"):
        loadable_table("t", table)


def test_a_name_that_is_empty_becomes_one() -> None:
    table = pa.table([pa.array([3]), pa.array([{"": 4}])], names=["", "s"])
    assert answer("SELECT unnamed, s.unnamed AS r FROM t", t=table).to_pylist() == [{"unnamed": 3, "r": 4}]


def test_T28_odd_names_need_quotes_and_work() -> None:
    table = pa.table({"a.b": [1], "a b": [2], 'ä"q': [3]})
    assert answer('SELECT "a.b", "a b", "ä""q" FROM t', t=table).to_pylist() == [
        {"a.b": 1, "a b": 2, 'ä"q': 3}
    ]


def test_a_struct_without_members_is_null() -> None:
    table = pa.table({"seq_id": [1, 2], "stats": pa.array([{}, {}], pa.struct([]))})
    assert answer("SELECT seq_id FROM t WHERE stats IS NULL", t=table).num_rows == 2


def test_distinct_names() -> None:
    assert distinct_names(["A", "a", "a_1"]) == ["A", "a_2", "a_1"]
    assert distinct_names(["", ""]) == ["unnamed", "unnamed_1"]
    assert distinct_names(["x", "y"]) == ["x", "y"]


def test_most_tables_are_loaded_as_they_are() -> None:
    table = pa.table({"a": [1], "b": ["x"], "c": [{"d": [1.5]}]})
    assert is_loadable(table.schema)
    assert not is_loadable(pa.schema([("a", pa.float16())]))
    assert loadable_table("t", table).schema == table.schema


def test_floats_are_found_at_any_depth() -> None:
    assert has_floats([pa.list_(pa.struct([("a", pa.float32())]))])
    assert not has_floats([pa.int64(), pa.list_(pa.string())])


def test_list_views_are_gathered_in_the_order_of_their_lists() -> None:
    values = pa.array([10, 20, 30, 40])
    views = pa.ListViewArray.from_arrays(
        pa.array([2, 0, 0], pa.int32()),
        pa.array([2, 1, 0], pa.int32()),
        values,
        mask=pa.array([False, False, True]),
    )
    assert convert(views, pa.list_(pa.int64())).to_pylist() == [[30, 40], [10], None]
