"""Every sequence of the real data sets as tensors, against the checksums that came with them."""

from __future__ import annotations

import csv
import hashlib

import pytest
import torch

import pqindex
from pqindex.torch import BatchPlan, Normalize, SequenceDataset, SequenceLoader

pytestmark = pytest.mark.shared

CHANNELS = {
    "basic_motions": [f"ch{i}" for i in range(6)],
    "chick_weights": ["weight"],
    "japanese_vowels": [f"lpc{i:02}" for i in range(12)],
    "plaid": ["watt"],
}
LAYOUTS = [
    ("basic_motions", "one_per_row_group"),
    ("basic_motions", "many_per_row_group"),
    ("chick_weights", "one_per_row_group"),
    ("chick_weights", "many_per_row_group"),
    ("chick_weights", "written_by_duckdb"),
    ("chick_weights", "written_by_polars"),
    ("japanese_vowels", "one_per_row_group"),
    ("japanese_vowels", "many_per_row_group"),
    ("japanese_vowels", "aligned"),
    ("plaid", "one_per_row_group"),
    ("plaid", "many_per_row_group"),
    ("plaid", "no_statistics"),
]


def oracle(shared, name) -> dict[str, tuple[int, str]]:
    with (shared / "data" / "sequences" / name / "oracle.csv").open() as file:
        return {row["seq_id"]: (int(row["length"]), row["sha256_16"]) for row in csv.DictReader(file)}


def build(shared, tmp_path, name, layout, **options):
    folder = shared / "data" / "sequences" / name / layout
    return pqindex.build(folder, index=tmp_path / "x.pqindex", **options)


def text(seq_id) -> str:
    return seq_id.hex() if isinstance(seq_id, bytes) else str(seq_id)


def checksum(channels_by_steps: torch.Tensor) -> str:
    return hashlib.sha256(channels_by_steps.contiguous().numpy().tobytes()).hexdigest()[:16]


@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
def test_every_sequence_equals_its_checksum(shared, tmp_path, name, layout):
    selection = build(shared, tmp_path, name, layout, order="t", join=True).select("SELECT seq_id FROM index")
    dataset = SequenceDataset(selection, {"x": CHANNELS[name]})
    plan = BatchPlan(selection, 32, shuffle="full", seed=1, rank=0, world_size=1)
    found = {}
    for batch in SequenceLoader(dataset, plan):
        for i, seq_id in enumerate(batch["seq_id"]):
            key = text(seq_id.item() if isinstance(seq_id, torch.Tensor) else seq_id)
            length = int(batch["lengths"][i])
            found[key] = (length, checksum(batch["x"][i, :length].T))
    assert found == oracle(shared, name)


def test_case_96_sequences_that_lie_in_list_columns_of_one_row(shared, tmp_path):
    selection = build(shared, tmp_path, "japanese_vowels", "list_per_row").select("SELECT seq_id FROM index")
    dataset = SequenceDataset(selection, {"x": CHANNELS["japanese_vowels"], "label": "label"})
    found = {}
    for item in dataset.__getitems__(range(len(dataset))):
        assert item["x"].shape[0] == len(item["label"]) == 1
        steps = item["x"].reshape(12, -1)
        found[str(item["seq_id"])] = (steps.shape[1], checksum(steps))
    assert found == oracle(shared, "japanese_vowels")


def test_lists_as_time_are_the_same_sequences(shared, tmp_path):
    selection = build(shared, tmp_path, "japanese_vowels", "list_per_row").select("SELECT seq_id FROM index")
    fields = {"x": CHANNELS["japanese_vowels"], "label": "label", "n": "length"}
    dataset = SequenceDataset(selection, fields, dtype={"n": torch.int64}, lists="time")
    found = {}
    for batch in SequenceLoader(
        dataset, BatchPlan(selection, 32, shuffle="full", seed=1, rank=0, world_size=1)
    ):
        assert torch.equal(batch["n"], batch["lengths"])
        assert all(isinstance(label, str) for label in batch["label"])
        for i, seq_id in enumerate(batch["seq_id"].tolist()):
            length = int(batch["lengths"][i])
            found[str(seq_id)] = (length, checksum(batch["x"][i, :length].T))
    assert found == oracle(shared, "japanese_vowels")


def test_sequences_normalised_by_their_own_statistics_have_mean_0_and_deviation_1(shared, tmp_path):
    channels = CHANNELS["japanese_vowels"]
    index = build(shared, tmp_path, "japanese_vowels", "many_per_row_group", order="t", join=True)
    rows = build(shared, tmp_path / "lists", "japanese_vowels", "list_per_row")
    manifest = index.select("SELECT seq_id FROM index").pin(
        tmp_path / "m.manifest.parquet", statistics=channels
    )
    # another layout holds the same values in the same order, so its statistics are the same bits
    assert rows.select("SELECT seq_id FROM index").statistics(channels) == manifest.statistics()
    dataset = SequenceDataset(manifest, {"x": channels}, transform=Normalize(manifest, {"x": channels}))
    x = torch.cat([item["x"] for item in dataset.__getitems__(range(len(dataset)))]).double()
    assert x.mean(0).abs().max() < 1e-6
    assert (x.std(0, correction=0) - 1).abs().max() < 1e-6
