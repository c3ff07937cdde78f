"""Selections equal a naive sort in Python, whatever the table, the ties and the order."""

from __future__ import annotations

import functools
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pqindex.sql import RANK_COLUMN, LockedDatabase, check_query, run_selection
from pqindex.sql import connection as connection_module
from pqindex.sql import selection as selection_module

FLOATS = st.one_of(st.none(), st.sampled_from([float("nan"), float("inf"), 0.0, -0.0, 1.5]))
ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(-2, 2)),
        FLOATS,
        st.one_of(st.none(), st.sampled_from(["", "a", "B", "b", "ä"])),
    ),
    max_size=25,
)
KEYS = st.lists(
    st.tuples(
        st.sampled_from(["a", "x", "s"]),
        st.sampled_from(["", "ASC", "DESC"]),
        st.sampled_from(["", "NULLS FIRST", "NULLS LAST"]),
    ),
    max_size=3,
    unique_by=lambda key: key[0],
)


def index_of(rows: list[tuple[Any, ...]], seed: int) -> pa.Table:
    ids = [(number * 7919 + seed) % 100_003 for number in range(len(rows))]
    return pa.table(
        {
            "seq_id": pa.array(ids, pa.int64()),
            "seq_no": pa.array(range(len(rows)), pa.int64()),
            "a": pa.array([row[0] for row in rows], pa.int64()),
            "x": pa.array([row[1] for row in rows], pa.float64()),
            "s": pa.array([row[2] for row in rows], pa.string()),
        }
    )


def comparable(value: Any) -> Any:
    """Return a value so that Python orders it as SQL does: NaN is the greatest, text goes by its bytes."""
    if isinstance(value, float):
        return (True, 0.0) if math.isnan(value) else (False, value)
    return value.encode() if isinstance(value, str) else value


def compare(keys: list[tuple[str, str, str]], one: dict[str, Any], other: dict[str, Any]) -> int:
    for name, direction, nulls in keys:
        a, b = one[name], other[name]
        if (a is None) != (b is None):
            nulls_first = nulls == "NULLS FIRST"
            return -1 if (a is None) == nulls_first else 1
        if a is not None and comparable(a) != comparable(b):
            smaller = comparable(a) < comparable(b)
            return -1 if smaller != (direction == "DESC") else 1
    return 0


def naive(table: pa.Table, keys: list[tuple[str, str, str]]) -> list[int]:
    """Return the ranks in the order of a stable sort."""
    rows = table.to_pylist()
    rows.sort(key=functools.cmp_to_key(functools.partial(compare, keys)))
    return [row["seq_no"] for row in rows]


@settings(max_examples=100)
@given(
    rows=ROWS,
    keys=KEYS,
    seed=st.integers(0, 1000),
    limit=st.one_of(st.none(), st.integers(0, 30)),
    offset=st.integers(0, 5),
    form=st.sampled_from(
        ["columns", "alias", "hidden", "number", "join", "grouped", "distinct", "union", "cte", "star"]
    ),
    beside=st.booleans(),
)
def test_the_order_is_that_of_a_stable_sort(
    rows: list[tuple[Any, ...]],
    keys: list[tuple[str, str, str]],
    seed: int,
    limit: int | None,
    offset: int,
    form: str,
    beside: bool,
) -> None:
    table = index_of(rows, seed)
    extra = pa.table({"seq_id": table.column("seq_id"), "w": table.column("seq_no")})
    forms = {
        "columns": ("SELECT seq_id, a, x, s FROM index", {}),
        "alias": ("SELECT seq_id, a AS p, x AS q, s AS r FROM index", {"a": "p", "x": "q", "s": "r"}),
        "hidden": ("SELECT seq_id FROM index", {}),
        "number": ("SELECT a, x, s, seq_id FROM index", {"a": "1", "x": "2", "s": "3"}),
        "join": ("SELECT w, seq_id FROM extra JOIN index USING (seq_id)", {}),
        "grouped": ("SELECT seq_id, count(*) AS n FROM index GROUP BY seq_id, a, x, s", {}),
        "distinct": ("SELECT DISTINCT seq_id, s, x, a FROM index", {}),
        "union": (
            "SELECT seq_id, a, x, s FROM index UNION ALL (SELECT seq_id, a, x, s FROM index LIMIT 0)",
            {},
        ),
        "cte": ("WITH t AS (SELECT * FROM index) SELECT seq_id FROM t", {}),
        "star": ("SELECT * FROM index", {}),
    }
    select, names = forms[form]
    order = ", ".join(f"{names.get(name, name)} {direction} {nulls}" for name, direction, nulls in keys)
    sql = f"{select} {'ORDER BY ' + order if order else ''}"
    if limit is not None:
        sql += f" LIMIT {limit} OFFSET {offset}"
    expected = naive(table, keys)
    if limit is not None:
        expected = expected[offset : offset + limit]
    with pytest.MonkeyPatch.context() as patch, LockedDatabase({"index": table, "extra": extra}) as database:
        if not beside:
            patch.setattr(selection_module, "_rank_beside_id", lambda *_, **__: None)
        answer = run_selection(database, check_query(sql, relations=database.schemas))
    assert answer.column(RANK_COLUMN).to_pylist() == expected
    assert answer.column("seq_id").equals(table.column("seq_id").take(answer.column(RANK_COLUMN)))


VALUES = {
    "i": (pa.int64(), st.one_of(st.none(), st.integers(-3, 3), st.just(2**53 + 1))),
    "u": (pa.uint64(), st.one_of(st.none(), st.integers(0, 3), st.just(2**64 - 1))),
    "f": (pa.float32(), FLOATS),
    "s": (pa.string(), st.one_of(st.none(), st.sampled_from(["", "a", "b", "ä", "a\0"]))),
    "y": (pa.binary(), st.one_of(st.none(), st.sampled_from([b"", b"\x00", b"\xff"]))),
    "d": (pa.date32(), st.one_of(st.none(), st.integers(-2, 2))),
    "t": (pa.timestamp("us"), st.one_of(st.none(), st.integers(-2, 2))),
    "m": (
        pa.struct([("min", pa.float64()), ("n", pa.int32())]),
        st.fixed_dictionaries({"min": FLOATS, "n": st.just(1)}),
    ),
}
CONDITIONS = [
    "i > 0", "i <> 1", "i IN (1, 2, 9007199254740993)", "i IS NULL", "i IS DISTINCT FROM 1", "i BETWEEN -1 AND 1",
    "u >= 18446744073709551615", "u < 2", "u = 0 OR u IS NULL",
    "f > 1", "f >= 'nan'::FLOAT", "NOT (f < 1)", "f = 0", "f <> 1.5", "f IN (1.5, 'nan'::FLOAT)", "f < 'inf'::FLOAT",
    "s = 'a'", "s > 'a'", "s <> ''", "s LIKE 'a%'", "s IN ('ä', 'b')", "s IS NOT NULL AND s < 'b'",
    "y = '\\xFF'::BLOB", "y > ''::BLOB",
    "d > DATE '1970-01-01'", "d <= DATE '1969-12-31'", "t < TIMESTAMP '1970-01-01'", "t = TIMESTAMP '1970-01-01'",
    "m.min > 1", "NOT (m.min <= 1)", "m.min IS NULL", "m.n = 1 AND m.min = 'nan'::DOUBLE",
]  # fmt: skip


@settings(max_examples=50)
@given(
    data=st.fixed_dictionaries(
        {name: st.lists(value, min_size=8, max_size=8) for name, (_, value) in VALUES.items()}
    ),
    conditions=st.lists(st.sampled_from(CONDITIONS), min_size=1, max_size=2),
    dataset=st.booleans(),
)
def test_a_scanned_relation_answers_as_a_copied_one(
    data: dict[str, list[Any]], conditions: list[str], dataset: bool
) -> None:
    import pyarrow.dataset as pds

    columns = {name: pa.array(values, VALUES[name][0]) for name, values in data.items()}
    table = pa.table({"n": range(8), **columns})
    sql = f"SELECT n FROM t WHERE {' AND '.join(conditions)} ORDER BY n"
    answers = []
    for copy_below in (0, 100):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection_module, "COPY_BELOW_ROWS", copy_below)
            with LockedDatabase({"t": pds.dataset(table) if dataset else table}) as database:
                query = check_query(sql, relations=database.schemas)
                answers.append(database.execute(query).column("n").to_pylist())
    assert answers[0] == answers[1]
