"""The benchmark runs, compares tensors before it times them, and says who is out and why. Nothing here is timed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the benchmark is a folder of the repository, not a part of the package

from benchmarks import contest, environment, epochs, shapes, table  # noqa: E402  # after the path is known
from benchmarks.__main__ import main, split_by_installed  # noqa: E402
from benchmarks.adapters import CACHED, CONTENDERS, EVERYONE, RAW  # noqa: E402
from benchmarks.adapters.base import Adapter  # noqa: E402
from benchmarks.host import Host, HostError  # noqa: E402
from benchmarks.measures import MEASURES  # noqa: E402
from benchmarks.timing import interleaved, spread  # noqa: E402

ALWAYS = (RAW, "dataset", "reader", "bare-reader", "lru", "duckdb", "memmap")
"""Contenders that need nothing beyond pqindex and torch."""


@pytest.fixture
def source(tmp_path: Path) -> shapes.Source:
    return shapes.write(shapes.QUICK[1], tmp_path)


def adapter(name: str, source: shapes.Source, home: Path) -> Adapter:
    home.mkdir()
    made = CONTENDERS[name].load()(source, home)
    made.prepare()
    made.open()
    return made


@pytest.mark.slow
def test_the_quick_run_measures_everything_of_every_contender_that_is_installed(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--shape", "A", "--json", str(path)]
    command += ["--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(path.read_text())
    assert [result["shape"]["key"] for result in document["results"]] == ["A"]
    measures = {measure for columns in table.SECTIONS.values() for measure, _ in columns.values()} | {
        "first_batch_s"
    }
    if not Path("/proc/self/smaps_rollup").exists():
        measures.remove("workers_pss_bytes")
    for result in document["results"]:
        assert all(note.startswith("skipped: ") for note in result["notes"].values()), result["notes"]
        assert set(result["samples"]) | set(result["notes"]) == set(CONTENDERS)
        for name in ALWAYS:
            assert set(result["samples"][name]) == measures, name
            assert all(all(v >= 0 for v in values) for values in result["samples"][name].values())
        assert set(result["building"]["seconds"]) >= {"build, 1 process", "open", "next select"}
        assert all(CONTENDERS[name].label in done.stdout for name in result["samples"])
    assert sorted(tmp_path.iterdir()) == [path], "the files that were measured are removed"


@pytest.mark.parametrize("shape", shapes.QUICK, ids=lambda shape: shape.key)
def test_places_are_those_of_the_files(tmp_path: Path, shape: shapes.Shape) -> None:
    source = shapes.write(shape, tmp_path)
    assert len(source.places) == shape.n_sequences
    for position, (file, group, start, n_rows) in enumerate(source.places):
        ids = (
            pq.ParquetFile(source.paths[file]).read_row_group(group, columns=["seq_id"])["seq_id"].to_numpy()
        )
        assert np.flatnonzero(ids == position).tolist() == list(range(start, start + n_rows))


def test_files_depend_on_the_seed_alone(tmp_path: Path) -> None:
    written = []
    for number, seed in enumerate((7, 7, 8)):
        folder = tmp_path / str(number)
        folder.mkdir()
        written.append(
            b"".join(Path(p).read_bytes() for p in shapes.write(shapes.QUICK[0], folder, seed=seed).paths)
        )
    assert written[0] == written[1] != written[2]


@pytest.mark.parametrize("name", [name for name in ALWAYS if name != RAW])
def test_an_adapter_gives_the_tensors_of_the_floor(tmp_path: Path, source: shapes.Source, name: str) -> None:
    floor, other = (adapter(n, source, tmp_path / n) for n in (RAW, name))
    truth = MEASURES["digests"](floor, list(range(source.shape.n_sequences)))
    assert all(len(digest) == 64 for digest in truth.values())
    positions = [0, 41, 7, 79, 20]
    found = MEASURES["digests"](other, positions)
    assert len(found) > len(positions), "the epoch's first batch is looked at as well"
    assert found.items() <= truth.items()
    other.forget()
    assert other.read(3).equal(floor.read(3))
    for made in (floor, other):
        made.close()


def test_a_batch_or_an_epoch_with_other_values_is_noticed(tmp_path: Path, source: shapes.Source) -> None:
    floor = adapter(RAW, source, tmp_path / RAW)
    positions = list(range(source.shape.n_sequences))
    read = floor.read
    floor.read_batch = lambda asked: [read(position) + 1 for position in asked]  # type: ignore[method-assign]
    found = MEASURES["digests"](floor, positions)
    assert set(found.values()) == {"the batch differs", "the epoch differs"}


class InPlace:
    """A contender without a process, whose answers are given."""

    def __init__(self, answers: dict[str, Callable[..., Any]]) -> None:
        self.answers = answers
        self.is_stopped = False

    def measure(self, measure: str, *arguments: Any) -> Any:
        return self.answers[measure](*arguments)

    def stop(self) -> None:
        self.is_stopped = True


def test_who_gives_other_tensors_is_out_before_anything_is_timed(source: shapes.Source) -> None:
    right = InPlace({"digests": lambda positions: {p: f"right {p}" for p in positions}})
    wrong = InPlace({"digests": lambda positions: dict.fromkeys(positions, "right 5")})
    held = contest.Contest({RAW: right, "memmap": wrong})  # type: ignore[dict-item]
    contest.check(held, source)
    assert list(held.hosts) == [RAW]
    assert wrong.is_stopped
    assert not right.is_stopped
    assert re.fullmatch(r"its tensors differ from PyArrow's, first at sequence \d+", held.notes["memmap"]), (
        held.notes
    )


def test_without_the_floor_there_is_no_contest(source: shapes.Source) -> None:
    def fail(*_: Any) -> None:
        raise HostError("it died")

    held = contest.Contest({RAW: InPlace({"digests": fail})})  # type: ignore[dict-item]
    with pytest.raises(SystemExit, match="the floor does not run: it died"):
        contest.check(held, source)


def test_a_contender_that_fails_says_what_it_failed_of(tmp_path: Path, source: shapes.Source) -> None:
    host = Host("memmap", source, tmp_path / "not there")
    try:
        host.wait_until_ready()
        assert host.reads_at_random
        with pytest.raises(HostError, match=r"FileNotFoundError: .*not there/values.f32"):
            host.measure("prepare")
        with pytest.raises(HostError, match="its process ended"):
            host.measure("prepare")
    finally:
        host.stop()


def test_a_contender_whose_package_is_missing_is_skipped_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {"litdata": "1", "polars": None}
    monkeypatch.setattr(
        type(CONTENDERS[RAW]), "versions", lambda self: {p: found.get(p, "1") for p in self.packages}
    )
    present, missing = split_by_installed([RAW, "litdata-parquet", "litdata"])
    assert present == [RAW, "litdata"]
    assert missing == {"litdata-parquet": "skipped: polars is not installed"}


def test_a_turn_is_once_a_round_and_the_first_is_left_out() -> None:
    turns: list[str] = []
    taken = interleaved({name: lambda name=name: turns.append(name) for name in "ab"}, rounds=3)
    assert turns == ["a", "b"] * 4
    assert [len(samples) for samples in taken.values()] == [3, 3]


def test_spread_is_the_quartiles_over_the_median() -> None:
    assert spread([2.0, 4.0, 6.0]) == 0.5
    assert spread([1.0]) == 0.0


def document(**samples: dict[str, list[float]]) -> dict[str, Any]:
    shape = {"key": "A", "name": "small", "n_files": 2, "rows": [5, 9], "n_columns": 8}
    result = {
        "shape": shape,
        "n_sequences": 1234,
        "n_columns_read": 4,
        "building": None,
        "machine": {"cores": 2},
        "samples": samples,
        "notes": {"lance": "skipped: pylance is not installed"},
    }
    return {"results": [result]}


def test_the_page_has_medians_and_their_ratios_to_raw() -> None:
    page = table.page(
        document(
            raw={"random_s": [0.004, 0.001, 0.002], "epoch_2_0_workers": [500.0], "disk_bytes": [0]},
            reader={"random_s": [0.001], "epoch_2_0_workers": [6000.0], "disk_bytes": [2.5e6]},
        )
    )
    assert page.startswith("cores 2\n")
    assert "## A: small (2 files, 1,234 sequences of 5-9 rows, 4 of 8 columns)" in page
    assert "| raw PyArrow, every file open | 2.0 ms | - | - |" in page
    assert "| **pqindex** `Reader` + stack | 1.0 ms (0.50 x) | - | - |" in page
    assert "| **pqindex** `Reader` + stack | - | 6,000 (12 x) | - | - |" in page
    assert "| **pqindex** `Reader` + stack | - | 2.50 MB | - | - |" in page
    assert "- Lance: skipped: pylance is not installed." in page


def test_show_prints_a_file_without_measuring(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(document(raw={"random_s": [0.001]})))
    shown = CliRunner().invoke(main, ["--show", "--json", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "| raw PyArrow, every file open | 1.0 ms |" in shown.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "Z"], "'Z' is none of A, B, C, D"),
        (["--quick", "--shape", "D"], "'D' is none of A, C"),
        (["--only", "raw,nobody"], "'nobody' is none of raw, dataset"),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert message in re.sub(r"\s+", " ", done.output)


def test_every_peer_is_pinned_exactly() -> None:
    lines = (ROOT / "benchmarks" / "peers.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins), pins
    pinned = {pin.split("==")[0] for pin in pins}
    pinned |= {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    needed = {package for contender in CONTENDERS.values() for package in contender.packages}
    assert needed - pinned == {"pqindex"}
    assert not any(pin.startswith("torch==") for pin in pins), (
        "torch comes with pqindex, as constraints.txt pins it"
    )


def test_an_environment_with_the_same_pins_is_used_again_and_another_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(environment.venv, "create", lambda folder, **_: folder.mkdir(exist_ok=True))
    monkeypatch.setattr(environment.subprocess, "run", lambda command, **_: ran.append(command))
    folder = tmp_path / "peers"
    python = environment.ready(folder)
    assert ran == environment.install_commands(python)
    assert environment.ready(folder) == python
    assert len(ran) == 2
    monkeypatch.setattr(environment, "PINS", environment.PINS[:1])
    environment.ready(folder)
    assert len(ran) == 4


@pytest.mark.slow
def test_the_quick_run_measures_whole_lives(tmp_path: Path) -> None:
    path = tmp_path / "epochs.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.epochs",
        "--quick",
        "--shape",
        "A-lz4-plain",
        "--rounds",
        "1",
    ]
    options = ["--only", "dataset-disk,dataset-memory", "--json", str(path), "--folder", str(tmp_path)]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(path.read_text())["results"]
    assert result["notes"] == {}
    assert set(result["samples"]) == {RAW, *CACHED}
    measures = {measure for measure, _ in table.LIFE.values()} | {"first_batch_s"}
    measures -= {"workers_pss_bytes"}
    if not Path("/proc/self/clear_refs").exists():
        measures -= {"peak_bytes", "prepare_peak_bytes"}
    for samples in result["samples"].values():
        assert set(samples) == measures
        assert {measure: len(values) for measure, values in samples.items() if len(values) != 1} == {
            "epoch_2_wall": epochs.LATER_EPOCHS,
            "epoch_2_cpu": epochs.LATER_EPOCHS,
        }
    taken = {name: samples["disk_bytes"][-1] for name, samples in result["samples"].items()}
    assert taken[RAW] == 0
    assert taken["dataset-disk"] > taken["dataset-memory"] > 0
    assert result["samples"]["dataset-memory"]["shared_bytes"][-1] > 0
    assert '**pqindex** `cache="disk"`' in done.stdout
    assert sorted(tmp_path.iterdir()) == [path], "the files that were measured are removed"


@pytest.mark.parametrize("name", list(CACHED))
def test_what_comes_from_a_cache_is_compared_with_the_floor_as_well(
    tmp_path: Path, source: shapes.Source, name: str
) -> None:
    floor = adapter(RAW, source, tmp_path / RAW)
    cached = EVERYONE[name].load()(source, tmp_path / name)
    cached.home.mkdir()
    cached.prepare()
    cached.open()
    positions = list(range(source.shape.n_sequences))
    truth = MEASURES["digests"](floor, positions)
    for _ in range(2):
        assert MEASURES["digests"](cached, positions) == truth
    left = MEASURES["left_behind"](cached)
    assert left["shared" if name == "dataset-memory" else "disk"] > 10_000
    cached.finish()
    assert MEASURES["left_behind"](cached)["shared"] == 0
    floor.close()


class Lives:
    """Makes hosts without processes: all are right, but the memmap in its second life."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.turns: list[tuple[str, str]] = []

    def __call__(self, name: str, _source: shapes.Source, home: Path) -> InPlace:
        assert home.is_dir()
        self.begun.append(name)
        digest = "wrong" if name == "memmap" and self.begun.count(name) == 2 else "right"
        answers: dict[str, Callable[..., Any]] = {
            "prepare": lambda: {"seconds": 1.0, "cpu_s": 0.5},
            "first_batch": lambda: 0.5,
            "first_epoch": lambda *_: {"wall": 10.0, "cpu": 12.0},
            "next_epoch": lambda number, *_: {"wall": 20.0 + number},
            "left_behind": lambda: {"disk": 5, "shared": 0},
            "digests": lambda asked: dict.fromkeys(asked, digest),
        }

        def answer(measure: str) -> Callable[..., Any]:
            def run(*arguments: Any) -> Any:
                self.turns.append((measure, name))
                return answers.get(measure, lambda *_: None)(*arguments)

            return run

        host = InPlace({measure: answer(measure) for measure in MEASURES})
        host.wait_until_ready = lambda: None  # type: ignore[attr-defined]
        return host


def test_lives_go_stage_by_stage_and_who_gives_other_tensors_loses_its_figures(
    tmp_path: Path, source: shapes.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = Lives()
    monkeypatch.setattr(epochs, "Host", lives)
    options = {"n_rounds": 3, "num_workers": 0, "limit_s": 1.0, "say": lambda _: None}
    found = list(epochs.rounds(source, tmp_path, [RAW, "memmap", "dataset"], **options))  # type: ignore[arg-type]
    assert lives.begun == [RAW, "memmap", "dataset", "dataset", "memmap", RAW, RAW, "dataset"]
    first = [name for measure, name in lives.turns if measure == "first_epoch"]
    later = [name for measure, name in lives.turns if measure == "next_epoch"]
    assert first == lives.begun
    assert later[:9] == [RAW, "memmap", "dataset"] * 3
    assert [set(one["samples"]) for one in found] == [{RAW, "memmap", "dataset"}, *[{RAW, "dataset"}] * 2]
    samples = found[2]["samples"]["dataset"]
    assert samples["from_nothing_s"] == [1.5] * 3
    assert samples["epoch_2_wall"] == [21.0, 22.0, 23.0] * 3
    assert list(found[2]["notes"]) == ["memmap"]
    assert found[2]["notes"]["memmap"].startswith("its tensors differ from PyArrow's, first at sequence ")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("homes-")]


def test_the_page_of_lives_has_the_cache_against_the_others_in_the_same_turn() -> None:
    lives = document(
        **{
            RAW: {"epoch_1_wall": [100.0, 100.0], "epoch_2_wall": [100.0, 100.0]},
            "dataset": {"epoch_1_wall": [200.0, 100.0], "epoch_2_wall": [200.0, 100.0]},
            "mds": {"epoch_1_wall": [300.0, 300.0], "epoch_2_wall": [400.0, 100.0], "prepare_s": [3.0, 5.0]},
            "dataset-disk": {
                "epoch_1_wall": [200.0, 80.0],
                "epoch_2_wall": [800.0, 400.0],
                "epoch_2_cpu": [1.0],
            },
        }
    )
    lives["results"][0] |= {"num_workers": 2}
    page = table.epochs_page(lives)
    assert "4 of 8 columns), 2 workers" in page
    assert "| MosaicML MDS, converted | 4.00 s | - | - | 300 (3.00 x) | 250 (2.50 x) |" in page
    assert '`cache="disk"`: a first epoch takes 1.12 x pqindex `SequenceDataset`.' in page
    assert "a second epoch takes 0.25 x pqindex `SequenceDataset`, 0.38 x MosaicML MDS." in page


def test_lives_are_shown_without_measuring_and_unknown_names_are_answered(tmp_path: Path) -> None:
    path = tmp_path / "epochs.json"
    path.write_text(json.dumps({"results": []}))
    assert CliRunner().invoke(epochs.main, ["--show", "--json", str(path)]).exit_code == 0
    for arguments, message in (
        (
            ["--shape", "A-gzip-plain"],
            "'A-gzip-plain' is none of A, B, C, D, A-zstd-dictionary, A-zstd-plain",
        ),
        (["--only", "nobody"], "'nobody' is none of raw, dataset"),
    ):
        done = CliRunner().invoke(epochs.main, arguments)
        assert done.exit_code == 2
        assert message in re.sub(r"\s+", " ", done.output)


def test_shapes_in_other_codecs_are_written_so(tmp_path: Path) -> None:
    assert [shape.key for shape in shapes.CODECS] == [
        f"A-{codec}-{encoding}"
        for codec in ("zstd", "lz4", "snappy", "none")
        for encoding in ("dictionary", "plain")
    ]
    source = shapes.write(shapes.QUICK_CODECS[0], tmp_path)
    column = pq.read_metadata(source.paths[0]).row_group(0).column(2)
    assert (column.compression, "RLE_DICTIONARY" in column.encodings) == ("LZ4", False)
