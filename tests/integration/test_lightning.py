"""Lightning: its epochs, its checkpoints and its count of batches, with the recipe of docs/trainers.md (T10 to T12)."""

from __future__ import annotations

import random
from itertools import chain

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

import pqindex
from pqindex.torch import BatchPlan

# Lightning's own use of torch, and advice that does not fit a test of a second
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '.*dataloader' does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:Be aware that when using .ckpt_path., callbacks:UserWarning"),
]

MODEL = """
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)

    def on_fit_start(self):
        self.log_file = Log()

    def training_step(self, batch, batch_idx):
        self.log_file.write(batch)
        return self.linear(batch["x"]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)
"""


def plan_of(pinned, world_size: int) -> BatchPlan:
    return BatchPlan(pqindex.load_manifest(pinned), 4, shuffle="full", rank=0, world_size=world_size)


def epochs(plan: BatchPlan, stop: int) -> list[list[int]]:
    """Batches of the epochs before `stop`, from where the plan is."""
    batches = []
    for epoch in range(plan.epoch, stop):
        plan.set_epoch(epoch)
        batches.extend(plan)
    return batches


@pytest.mark.slow
def test_two_processes_are_killed_and_go_on_where_the_checkpoint_was_taken(run, recipe, pinned, tmp_path):
    (tmp_path / "data.py").write_text(recipe("lightning data"))
    whole = list(chain.from_iterable(epochs(plan_of(pinned, 1), 2)))
    killed = run(recipe("lightning"), model=MODEL, PAUSE_S="0.05")
    killed.kill_after(random.randrange(4, 15))  # of 16 steps
    state = torch.load(tmp_path / "checkpoints" / "last.ckpt")["Data"]["loader"]
    n_saved = state["epoch"] * 61 + state["position"]
    before = killed.delivered(n_saved)
    assert before == whole[:n_saved] != []

    resumed = run(recipe("lightning"), model=MODEL).wait()
    assert len(resumed.ranks) == 2
    assert before + resumed.delivered() == whole, state


# -- every place where a checkpoint can be taken, in one process -----------------------------------------------


class Seen(LightningModule):
    """A model that keeps the batches that it is trained on, as positions."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)
        self.batches = []
        self.validations = 0

    def training_step(self, batch, batch_idx):
        self.batches.append(batch["seq_id"].tolist())
        return self.linear(batch["x"]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.validations += 1

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)


@pytest.fixture
def fit(recipe, pinned, monkeypatch):
    """Train as rank 0 of `world_size` ranks, in this process, with the data module of the recipe."""
    monkeypatch.chdir(pinned.parent)

    def run_fit(world_size, checkpoint=None, *, saves=None, max_steps=-1, reload=1):
        text = recipe(
            "lightning data",
            **{
                'shuffle="full"': f'shuffle="full", rank=0, world_size={world_size}',
                "num_workers=2": "num_workers=0",
            },
        )
        names = {"__name__": "data"}
        exec(compile(text, "data.py", "exec"), names)
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=3,
            max_steps=max_steps,
            use_distributed_sampler=False,
            reload_dataloaders_every_n_epochs=reload,
            callbacks=[saves] if saves else [],
            enable_checkpointing=saves is not None,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        model, data = Seen(), names["Data"]()
        data.val_dataloader = lambda: torch.utils.data.DataLoader([0])
        trainer.fit(model, datamodule=data, ckpt_path=checkpoint)
        return trainer, model

    return run_fit


@pytest.mark.parametrize(("old", "new"), [(2, 2), (2, 1), (2, 3), (1, 2)])
def test_every_batch_of_the_rest_comes_once_wherever_the_checkpoint_was_taken(
    old, new, fit, pinned, tmp_path
):
    whole = epochs(plan_of(pinned, old), 3)
    n_steps = len(whole) // 3
    assert len({str(whole[i * n_steps : (i + 1) * n_steps]) for i in range(3)}) == 3
    saves = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    _, model = fit(old, saves=saves)
    assert model.batches == whole
    for step in (1, 3, n_steps // 2 + 1, n_steps - 2, n_steps, n_steps + 1, 2 * n_steps + 3):
        checkpoint = tmp_path / f"step={step}.ckpt"
        if old != new and step == n_steps:
            with pytest.raises(RuntimeError, match="after the last batch of an epoch"):
                fit(new, checkpoint)
            continue
        plan = plan_of(pinned, new)
        plan.load_state_dict(torch.load(checkpoint)["Data"]["loader"])
        rest = epochs(plan, 3)
        assert rest == whole[step:] or old != new
        _, model = fit(new, checkpoint)
        assert model.batches == rest, (step, len(model.batches), len(rest))
        assert model.validations >= 3 - step // n_steps  # an epoch that was resumed ends as others do


@pytest.mark.parametrize(("new", "reload"), [(1, 1), (2, 1), (3, 1), (2, 0)])
def test_a_checkpoint_of_the_end_of_an_epoch_goes_on_with_the_next(new, reload, fit, pinned, tmp_path):
    fit(2, saves=ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1), reload=reload)
    for epoch in range(2):
        plan = plan_of(pinned, new)
        plan.set_epoch(epoch + 1)
        _, model = fit(new, tmp_path / f"epoch={epoch}.ckpt", reload=reload)
        assert model.batches == epochs(plan, 3)


def test_a_checkpoint_by_which_lightning_would_leave_out_the_rest_of_an_epoch_is_refused(fit, tmp_path):
    trainer, _ = fit(2, max_steps=5)
    trainer.save_checkpoint(tmp_path / "late.ckpt")
    with pytest.raises(RuntimeError, match=r"saved when fit\(\) had ended inside an epoch"):
        fit(2, tmp_path / "late.ckpt")
