"""Two processes of one run: each finds its rank by itself, and together they see everything once (T11, T12, L16)."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pqindex

RUN = """
import json, sys
import torch.distributed as dist
import pqindex
from pqindex.torch import BatchPlan, SequenceDataset, SequenceLoader

manifest_path, store, rank = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
manifest = pqindex.load_manifest(manifest_path)
plan = BatchPlan(manifest, 3, shuffle="full")
loader = SequenceLoader(SequenceDataset(manifest, {"x": ["f0"]}), plan)
steps = []
for batch in loader:
    dist.barrier()  # hangs if the ranks take unequal numbers of steps
    steps.append(batch["seq_id"].tolist())
print(json.dumps({"rank": plan.rank, "world_size": plan.world_size, "len": len(loader), "steps": steps}))
dist.destroy_process_group()
"""


def test_two_ranks_see_every_sequence_once_in_equal_steps(tmp_path):
    (tmp_path / "data").mkdir()
    ids = np.repeat(np.arange(31), 2)
    pq.write_table(pa.table({"seq_id": ids, "f0": ids * 1.0}), tmp_path / "data" / "a.parquet")
    path = tmp_path / "all.manifest.parquet"
    pqindex.build(tmp_path / "data").select("SELECT seq_id FROM index").pin(path, seed=5)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RUN, str(path), str(tmp_path / "store"), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = []
    for process in ranks:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        said.append(json.loads(out))
    assert [(one["rank"], one["world_size"]) for one in said] == [(0, 2), (1, 2)]
    assert {one["len"] for one in said} == {len(one["steps"]) for one in said} == {6}
    assert sorted(i for one in said for step in one["steps"] for i in step) == list(range(31))
