"""The demo's training: who of nine speakers said it? A small GRU over utterances of 12 channels.

The functions are what the demo prints, so they are written to be read.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence

import pqindex
from pqindex.torch import BatchPlan, SequenceDataset, SequenceLoader, collate_padded

CHANNELS = [f"lpc{number:02}" for number in range(12)]
N_SPEAKERS = 9
N_EPOCHS = 15
N_THREADS = 1  # so small a model gains nothing from more, and loses much on a busy machine
MODEL_SEED = 0


def open_loader(manifest: str, n_workers: int) -> SequenceLoader:
    """Return batches of 32 utterances of a pinned selection, shuffled by the manifest's seed."""
    pinned = pqindex.load_manifest(manifest)
    dataset = SequenceDataset(pinned, fields={"x": CHANNELS}, dtype=torch.float32)
    plan = BatchPlan(pinned, batch_size=32, shuffle="full")
    return SequenceLoader(dataset, plan, collate_fn=collate_padded, num_workers=n_workers)


class SpeakerGRU(nn.Module):
    """One recurrent layer, and a vote for each speaker from its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(len(CHANNELS), 64, batch_first=True)
        self.vote = nn.Linear(64, N_SPEAKERS)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the votes, shape (n_utterances, n_speakers)."""
        packed = pack_padded_sequence(batch["x"], batch["lengths"], batch_first=True, enforce_sorted=False)
        _, state = self.recurrent(packed)
        votes: torch.Tensor = self.vote(state[-1])
        return votes


def train(loader: SequenceLoader) -> SpeakerGRU:
    """Return a model that saw every utterance of the loader once an epoch."""
    torch.manual_seed(MODEL_SEED)
    model = SpeakerGRU()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(N_EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            loss = cross_entropy(model(batch), batch["speaker"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return model


def accuracy(model: SpeakerGRU, loader: SequenceLoader) -> float:
    """Return the share of the loader's utterances whose speaker the model names."""
    n_right = n_seen = 0
    with torch.no_grad():
        for batch in loader:
            n_right += int((model(batch).argmax(dim=1) == batch["speaker"]).sum())
            n_seen += len(batch["speaker"])
    return n_right / n_seen


def record(loader: SequenceLoader, epoch: int) -> list[tuple[list[int], str]]:
    """Return what an epoch delivers: for each batch its ids and a checksum of its tensor."""
    loader.set_epoch(epoch)
    return [
        (list(map(int, batch["seq_id"])), hashlib.sha256(batch["x"].numpy().tobytes()).hexdigest()[:16])
        for batch in loader
    ]
