"""The specification's own examples: each block is read, each digest computed, each good and bad document judged."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex import format as pqformat
from pqindex.digest import RecordDigest, canonical_json, sha256_hex, table_digest
from pqindex.documents import BuildOptions, ManifestHeader, Part, Snapshot
from pqindex.errors import DocumentInvalidError, FormatError, UnsupportedFeatureError, UnsupportedVersionError

SPEC = Path(__file__).resolve().parents[2] / "spec"
TEXT = (SPEC / "pqindex-v1.md").read_text(encoding="utf-8")


def example(name: str) -> str:
    found = re.search(rf"<!-- example: {name} -->\n```\w+\n(.*?)\n```", TEXT, re.DOTALL)
    assert found, f"the specification has no example {name!r}"
    return found.group(1)


def schema(name: str) -> dict[str, Any]:
    return dict(json.loads((SPEC / f"{name}.schema.json").read_text(encoding="utf-8")))


PARSERS: dict[str, Callable[[bytes], Any]] = {
    "snapshot": lambda data: Snapshot.from_json(data, name="snapshot"),
    "manifest": lambda data: ManifestHeader.from_json(data, name="manifest"),
}


@pytest.mark.parametrize("name", ["snapshot", "manifest"])
def test_examples_are_canonical_valid_and_come_back_unchanged(name: str) -> None:
    raw = example(name).encode()
    jsonschema.validate(json.loads(raw), schema(name))
    assert canonical_json(json.loads(raw)) == raw
    assert PARSERS[name](raw).to_json() == raw


def changed(value: Any, path: str, new: Any) -> Any:
    """A copy of a document with one field set, or removed where `new` is ...."""
    value = json.loads(json.dumps(value))
    *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    inner = value
    for key in parents:
        inner = inner[key]
    if new is ...:
        del inner[last]
    else:
        inner[last] = new
    return value


BAD = {
    "snapshot": [
        ("snapshot", 0),
        ("snapshot", "1"),
        ("snapshot", True),
        ("parent", 0),
        ("source/root", 3),
        ("source/kind", ...),
        ("source/ignore_lake", "no"),
        ("source/table", {"format": "delta", "version": 3}),
        ("source/passed_over", {"hidden name": -1}),
        ("options/check", "all"),
        ("options/attributes", "label"),
        ("options/attributes", None),
        ("options/aggregates", {"m": 1}),
        ("options/aggregates", ...),
        ("options/join", 1),
        ("options/pages", True),
        ("options/key", ...),
        ("options/key", 1),
        ("options/unit", "column"),
        ("options/partition_types", {"year": "int63"}),
        ("options/statistics", [1]),
        ("schemas/0/schema", ...),
        ("schemas/0/created_by", 5),
        ("parts/0/part", "XYZ"),
        ("parts/0/tables/chunks", ...),
        ("parts/0/tables/files/sha256", "00"),
        ("parts/0/tables/files/size_bytes", -1),
        ("parts", {}),
        ("skipped", [{"path": "a"}]),
        ("notes", [1]),
        ("totals/n_rows", 1.5),
        ("content_digest", "B" * 64),
        ("created_at", None),
    ],
    "manifest": [
        ("index/content_digest", ""),
        ("query/sql", ...),
        ("query/parameters", "x"),
        ("query/attached", {"a": "b"}),
        ("seed", -1),
        ("seed", 2**53),
        ("counts/n_rows", ...),
        ("files/0/path", "/etc/passwd"),
        ("files/0/path", "a/../../b"),
        ("files/0/path", ""),
        ("files/0/footer_sha256", "f0"),
        ("files/0/content_sha256", "f0"),
        ("files/0/content_sha256", None),
        ("selection_digest", 7),
        ("statistics", []),
        ("statistics/x", None),
        ("statistics/x/std", ...),
        ("statistics/x/std", -0.5),
        ("statistics/x/mean", "1"),
        ("statistics/x/mean", True),
        ("statistics/x/count", 1.5),
        ("statistics/x/nan_count", -1),
    ],
}


@pytest.mark.parametrize(
    ("name", "path", "new"), [(name, *case) for name, cases in BAD.items() for case in cases]
)
def test_bad_documents_are_refused_by_schema_and_reader_alike(name: str, path: str, new: Any) -> None:
    document = changed(json.loads(example(name)), path, new)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema(name))
    with pytest.raises(DocumentInvalidError) as caught:
        PARSERS[name](json.dumps(document).encode())
    assert any(path.split("/", maxsplit=1)[0] in problem for problem in caught.value.problems)


def test_all_problems_are_listed_at_once() -> None:
    document = changed(changed(json.loads(example("snapshot")), "notes", 1), "totals", 2)
    with pytest.raises(DocumentInvalidError) as caught:
        Snapshot.from_json(json.dumps(document).encode(), name="here")
    assert len(caught.value.problems) == 2
    assert "here has 2 problems" in str(caught.value)


@pytest.mark.parametrize("name", ["snapshot", "manifest"])
@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("mood", "good", None),
        ("format_version", 2, UnsupportedVersionError),
        ("reader_features", ["bloom"], UnsupportedFeatureError),
        ("writer_features", ["bloom"], None),
        ("format", "other", DocumentInvalidError),
        ("format_version", "1", DocumentInvalidError),
        ("reader_features", None, DocumentInvalidError),
    ],
)
def test_the_gate_of_versions_V2_V3_case_108(
    name: str, field: str, value: Any, error: type[FormatError] | None
) -> None:
    data = json.dumps({**json.loads(example(name)), field: value}).encode()
    if error is None:
        PARSERS[name](data)
    else:
        with pytest.raises(error):
            PARSERS[name](data)


def test_unknown_fields_are_kept_V3() -> None:
    document = {**json.loads(example("snapshot")), "mood": "good"}
    assert json.loads(Snapshot.from_json(canonical_json(document), name="x").to_json())["mood"] == "good"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_what_is_no_document_is_said(data: bytes) -> None:
    for parse in PARSERS.values():
        with pytest.raises(DocumentInvalidError):
            parse(data)


def test_the_digests_of_the_specification_D1_to_D4() -> None:
    values = json.loads(example("digests"))
    case = values["canonical_json"]
    assert sha256_hex(canonical_json(case["value"])) == case["sha256"]
    digest = RecordDigest()
    digest.add_json(*values["records"]["json"])
    name, integers = values["records"]["integers"]
    digest.add_integers(name, pa.array(integers).to_numpy())
    assert digest.hexdigest() == values["records"]["digest"]
    types = {"array_int32": pa.int32(), "array_string": pa.string(), "array_list": pa.list_(pa.float32())}
    for name, data_type in types.items():
        digest = RecordDigest()
        digest.add_array("x", pa.array(values[name]["values"], data_type))
        assert digest.hexdigest() == values[name]["digest"], name
    assert table_digest(pa.table(values["table"]["columns"])) == values["table"]["digest"]


def test_a_record_digest_by_hand_D2() -> None:
    """The bytes as the rule says them, put together without our code."""
    raw = b"x\0" + (7).to_bytes(8, "little") + b'{"k":1}'
    raw += (
        b"n\0"
        + (16).to_bytes(8, "little")
        + (1).to_bytes(8, "little")
        + (-2).to_bytes(8, "little", signed=True)
    )
    assert sha256_hex(raw) == json.loads(example("digests"))["records"]["digest"]


@pytest.mark.parametrize(
    ("path", "new"),
    [("statistics", ...), ("statistics", {}), ("statistics/x/mean", None), ("statistics/x/median", 1.0)],
)
def test_statistics_of_a_manifest_are_optional_and_may_be_null_M5(path: str, new: Any) -> None:
    document = changed(json.loads(example("manifest")), path, new)
    jsonschema.validate(document, schema("manifest"))
    header = ManifestHeader.from_json(json.dumps(document).encode(), name="manifest")
    assert ("statistics" in json.loads(header.to_json())) == bool(document.get("statistics"))


def test_numbers_that_json_has_not_are_no_statistics() -> None:
    for number in (b"NaN", b"Infinity", b"1" + b"0" * 400):
        raw = example("manifest").encode().replace(b'"max":3', b'"max":' + number)
        assert number in raw
        with pytest.raises(
            DocumentInvalidError, match=r"statistics\.x\.max: expected a finite number, or null"
        ):
            ManifestHeader.from_json(raw, name="manifest")


def _statistics_by_the_rule(values: list[float]) -> dict[str, float]:
    """Rule M5 as it reads, one Python float at a time."""
    total, big_mean, big_squares = _moments_by_the_rule(values)
    std = math.sqrt(big_squares / total)
    return {"count": total, "mean": big_mean, "std": std, "min": min(values), "max": max(values)}


def _moments_by_the_rule(values: list[float]) -> tuple[int, float, float]:
    total, big_mean, big_squares = 0, 0.0, 0.0
    for start in range(0, len(values), 65_536):
        block = values[start : start + 65_536]
        n = len(block)
        mean = _sum_by_the_rule(block) / n
        squares = _sum_by_the_rule([(x - mean) * (x - mean) for x in block])
        if not total:
            total, big_mean, big_squares = n, mean, squares
            continue
        t, d = total + n, mean - big_mean
        big_mean = big_mean + d * (n / t)
        big_squares = (big_squares + squares) + (d * d) * ((total * n) / t)
        total = t
    return total, big_mean, big_squares


def _sum_by_the_rule(block: list[float]) -> float:
    parts = block + [0.0] * (65_536 - len(block))
    h = 32_768
    while h:
        parts = [parts[i] + parts[i + h] for i in range(h)]
        h //= 2
    return parts[0]


def test_the_statistics_of_the_specification_M5(tmp_path: Path) -> None:
    cases = json.loads(example("statistics"))
    small = [None if v is None else float(v) for v in cases["small"]["values"]]
    cubes = [(i * i % 997) ** 3 / 9 for i in range(cases["cubes"]["n_values"])]
    for name, values in (("small", small), ("cubes", cubes)):
        said = cases[name]["statistics"]
        finite = [v for v in values if v is not None and math.isfinite(v)]
        assert {**said, **_statistics_by_the_rule(finite)} == said, name
        pq.write_table(pa.table({"seq_id": [1] * len(values), "x": values}), tmp_path / f"{name}.parquet")
        selection = pqindex.build(tmp_path / f"{name}.parquet").select()
        assert selection.statistics(["x"])["x"].to_json() == said, name


def test_options_are_those_of_the_specification() -> None:
    options = json.loads(example("snapshot"))["options"]
    assert set(BuildOptions().to_json()) == set(options)
    assert BuildOptions.from_json(options).to_json() == options


# -- an index on disk -----------------------------------------------------------------------------------------


@pytest.fixture
def index(tmp_path: Path) -> pqindex.Index:
    source = tmp_path / "data"
    source.mkdir()
    schema = pa.schema(
        [("seq_id", pa.string()), ("t", pa.int32()), ("x", pa.float32()), ("label", pa.string())]
    )
    with pq.ParquetWriter(source / "a.parquet", schema, data_page_size=1, write_batch_size=1) as writer:
        for group in ([("b", 0), ("b", 1)], [("b", 2), ("a", 0), ("a", 1), ("a", 2)]):
            keys, steps = zip(*group, strict=True)
            table = pa.table(
                [keys, pa.array(steps, pa.int32()), pa.array(steps, pa.float32()), keys], schema=schema
            )
            writer.write_table(table)
    return pqindex.build(
        source, order="t", check="full", attributes=["label"], aggregates={"mean_x": "avg(x)"}
    )


def test_files_and_names_S1_P1_P2_P3(index: pqindex.Index) -> None:
    folder = Path(index.path)
    snapshot = Snapshot.from_json((folder / "00000001.snapshot.json").read_bytes(), name="x")
    (part,) = snapshot.parts
    assert part.name == Part.name_of(part.tables)
    assert set(part.tables) == set(pqformat.TABLES)
    for table, descriptor in part.tables.items():
        path = folder / f"parts/{part.name}-{table}.parquet"
        raw = path.read_bytes()
        assert (len(raw), sha256_hex(raw)) == (descriptor.size_bytes, descriptor.sha256)
        metadata = pq.read_schema(path).metadata
        assert (metadata[b"pqindex.table"], metadata[b"pqindex.format_version"]) == (table.encode(), b"1")
    assert json.loads((folder / "00000001.snapshot.json").read_bytes())["source"] == {
        "ignore_lake": False,
        "kind": "folder",
        "passed_over": {},
        "root": "../data",
        "table": None,
    }


def test_tables_have_the_columns_of_the_specification_P4(index: pqindex.Index) -> None:
    folder = Path(index.path) / "parts"
    for table in ("files", "segments", "chunks", "pages"):
        (path,) = folder.glob(f"*-{table}.parquet")
        assert pq.read_schema(path).remove_metadata().equals(getattr(pqformat, table.upper()))
    for table, section in re.findall(r"### (\w+): .*?\n\n(.*?)(?=\n### |\n## )", TEXT, re.DOTALL):
        (path,) = folder.glob(f"*-{table}.parquet")
        said = {
            name
            for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
            for name in re.findall(r"`(\w+)`", row)
        }
        if table == "chunks":
            said |= {"file_id", "row_group"}
        assert said == set(pq.read_schema(path).names), table


def test_the_digest_of_a_row_group_by_hand_R1_M6(index: pqindex.Index, tmp_path: Path) -> None:
    source = tmp_path / "data/a.parquet"
    raw, metadata = source.read_bytes(), pq.read_metadata(source)
    digests = []
    for group in range(metadata.num_row_groups):
        chunks = [metadata.row_group(group).column(i) for i in range(metadata.num_columns)]
        spans = sorted(
            (chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size)
            for chunk in chunks
        )
        digests.append(hashlib.sha256(b"".join(raw[start : start + n] for start, n in spans)).digest())
    assert index.sql("SELECT data_sha256 FROM row_groups").column(0).to_pylist() == digests
    manifest = index.select().pin(tmp_path / "m.manifest.parquet")
    (file,) = manifest.header["files"]
    assert file["content_sha256"] == hashlib.sha256(b"".join(digests)).hexdigest()


def test_moments_of_a_sequence_by_the_rule_Q5(tmp_path: Path) -> None:
    """The segments of one sequence, of which the longer has two blocks."""
    cubes = [(i * i % 997) ** 3 / 9 for i in range(100_000)]
    table = pa.table({"seq_id": [1] * len(cubes), "x": cubes})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=80_000)
    index = pqindex.build(tmp_path / "a.parquet", check="full")
    total, mean, squares = 0, 0.0, 0.0
    for start, stop in ((0, 80_000), (80_000, 100_000)):
        parts = _moments_by_the_rule(cubes[start:stop])
        if not total:
            total, mean, squares = parts
            continue
        n, m, q = parts
        t, d = total + n, m - mean
        mean = mean + d * (n / t)
        squares = (squares + q) + (d * d) * ((total * n) / t)
        total = t
    found = index.sql("SELECT stats.x.mean AS mean, stats.x.std AS std FROM index").to_pylist()
    assert found == [{"mean": mean, "std": math.sqrt(squares / total)}]


def test_the_sql_of_the_specification_reads_the_index(
    index: pqindex.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(index.path)
    part = Snapshot.from_json((folder / "00000001.snapshot.json").read_bytes(), name="x").parts[0].name
    monkeypatch.chdir(folder.parent)
    found = duckdb.connect().execute(example("duckdb").replace("/P-", f"/{part}-")).fetchall()
    assert found == [("b", "a.parquet", 0, 0, 3), ("a", "a.parquet", 1, 1, 3)]


def test_the_content_digest_by_the_rule_D5(index: pqindex.Index) -> None:
    """Put together from the tables on disk, as a reader in another language would."""
    folder = Path(index.path)
    document = json.loads((folder / "00000001.snapshot.json").read_bytes())
    part = document["parts"][0]["part"]
    files, sequences, segments = (
        pq.read_table(folder / f"parts/{part}-{name}.parquet") for name in ("files", "sequences", "segments")
    )
    assert sequences.column("n_segments").to_pylist() == [2, 1]
    own = [(0, 1, 1, 4)]
    multi = list(
        zip(
            *(segments.column(c).to_pylist() for c in ("file_id", "row_group", "row_start", "row_stop")),
            strict=True,
        )
    )
    columns = list(zip(*(multi + own), strict=True))
    digest = RecordDigest()
    options = {name: value for name, value in document["options"].items() if name != "pages"}
    digest.add_json("pqindex", {"format_version": 1, "options": options})
    digest.add_array("path", files.column("path"))
    digest.add_integers("size_bytes", files.column("size_bytes").to_numpy())
    digest.add_array("footer_sha256", files.column("footer_sha256"))
    digest.add_array("seq_id", sequences.column("seq_id"))
    digest.add_integers("segment_stops", pa.array([0, 2, 3]).to_numpy())
    for name, column in zip(("file_id", "row_group", "row_start", "row_stop"), columns, strict=True):
        digest.add_integers(name, pa.array(column).to_numpy())
    row_groups = pq.read_table(folder / f"parts/{part}-row_groups.parquet")
    digest.add_array("data_sha256", row_groups.column("data_sha256"))
    digest.add_array("attributes.0", pa.array(["b", "a"]))
    assert digest.hexdigest() == document["content_digest"] == index.content_digest


def test_several_parts_are_one_by_the_rules_P5_and_P6(tmp_path: Path) -> None:
    """Put together in plain Python from the tables on disk, as a reader in another language would."""
    source = tmp_path / "data"
    source.mkdir()

    def write(name: str, keys: list[int], key_type: pa.DataType) -> None:
        table = pa.table({"seq_id": pa.array(keys, key_type), "t": list(range(len(keys)))})
        pq.write_table(table, source / name, row_group_size=2)

    for name, keys in {"b.parquet": [1, 1, 1, 2], "d.parquet": [3, 4], "e.parquet": [5, 5]}.items():
        write(name, keys, pa.int32())
    index = pqindex.build(source)
    write("a.parquet", [9, 9, 9], pa.int64())
    write("d.parquet", [6, 6, 6], pa.int32())
    (source / "e.parquet").unlink()
    index.refresh()
    folder = Path(index.path)
    document = json.loads((folder / "00000002.snapshot.json").read_bytes())
    assert [part["removed_files"] for part in document["parts"]] == [[1, 2], []]

    paths, places = [], {}
    for part in document["parts"]:

        def rows(table: str, name: str = part["part"], there: Any = part["tables"]) -> list[dict[str, Any]]:
            return (
                pq.read_table(folder / f"parts/{name}-{table}.parquet").to_pylist() if table in there else []
            )

        files = {r["file_id"]: r["path"] for r in rows("files") if r["file_id"] not in part["removed_files"]}
        paths += files.values()
        several: dict[int, list[tuple[Any, ...]]] = {}
        for r in rows("segments"):
            several.setdefault(r["sequence_row"], []).append(
                (files.get(r["file_id"]), r["row_group"], r["row_start"], r["row_stop"])
            )
        for number, r in enumerate(rows("sequences")):
            if r["file_id"] in files:
                first = (files[r["file_id"]], r["row_group"], r["row_start"])
                places[first] = (
                    r["seq_id"],
                    several.get(number, [(*first, r["row_start"] + r["row_count"])]),
                )
    assert sorted(paths, key=str.encode) == index.sql("SELECT path FROM files").column("path").to_pylist()
    expected = [
        (seq_id, *segment)
        for _, (seq_id, segments) in sorted(
            places.items(), key=lambda item: (item[0][0].encode(), *item[0][1:])
        )
        for segment in segments
    ]
    columns = "seq_id, file, row_group, row_start, row_stop"
    found = index.sql(f"SELECT {columns} FROM segments ORDER BY seq_no, segment").to_pylist()
    assert [tuple(row.values()) for row in found] == expected
    assert index.sql("SELECT seq_id FROM index").schema.field("seq_id").type == pa.int64()
