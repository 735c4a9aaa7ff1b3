"""The callback in a real Lightning Trainer, of either package; slow, because Lightning is an extra."""

from __future__ import annotations

import importlib
import math
import os
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")

from finitune.integrations import LightningCallback  # noqa: E402
from finitune.monitor.watch import watch  # noqa: E402
from finitune.recording import Recording  # noqa: E402

pytestmark = pytest.mark.slow
PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def fit(pl, directory, *, bad=range(6, 9), callbacks=True, **options):
    """Eight steps of three rows; the rows in `bad` have no label."""

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def training_step(self, batch, _index):
            return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    torch.manual_seed(0)
    module = Module()
    x, y = torch.randn(24, 4), torch.randint(2, (24,))
    y[list(bad)] = -100
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=3)
    settings = {"max_steps": 8, "logger": False, "enable_checkpointing": False, **options}
    trainer = pl.Trainer(
        accelerator="cpu", default_root_dir=directory, enable_progress_bar=False, enable_model_summary=False,
        log_every_n_steps=1, callbacks=[LightningCallback()] if callbacks else [], **settings,
    )  # fmt: skip
    trainer.fit(module, loader)
    return trainer, module


@pytest.mark.parametrize("package", PACKAGES)
def test_a_bad_step_is_discarded(package, tmp_path):
    pl = pytest.importorskip(package)
    _, module = fit(pl, tmp_path, gradient_clip_val=1.0)
    recording = Recording.load(tmp_path / "finitune")
    assert [event["step"] for event in recording.events("incident")] == [3]
    assert {event["origin"]["op"] for event in recording.events("origin")} == {"aten.nll_loss_forward"}
    assert recording.signals["skipped"].values.tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
    assert all(bool(p.isfinite().all()) for p in module.parameters())


def test_a_healthy_training_is_bit_identical(tmp_path):
    pl = importlib.import_module(PACKAGES[0])
    _, plain = fit(pl, tmp_path / "plain", bad=(), callbacks=False)
    _, guarded = fit(pl, tmp_path / "guarded", bad=())
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), guarded.parameters(), strict=True))
    assert not Recording.load(tmp_path / "guarded" / "finitune").events("incident", "broken")


def test_sixteen_mixed_on_a_cpu_is_recorded_as_the_bfloat16_that_it_is(tmp_path):
    pl = importlib.import_module(PACKAGES[0])
    fit(pl, tmp_path, bad=(), precision="16-mixed")
    precision = Recording.load(tmp_path / "finitune").facts.precision
    assert precision is not None
    assert precision.compute == "bfloat16"


def test_the_trackers_hold_the_true_loss_and_the_alert(tmp_path):
    pl = importlib.import_module(PACKAGES[0])
    pytest.importorskip("tensorboard")
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit(pl, tmp_path, logger=[TensorBoardLogger(tmp_path / "board"), CSVLogger(tmp_path / "csv")])
    (file,) = (tmp_path / "board").rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file))
    events.Reload()
    losses = {scalar.step: scalar.value for scalar in events.Scalars("finitune/loss")}
    assert math.isnan(losses.pop(3))
    assert set(losses) == {1, 2, 4, 5, 6, 7, 8}
    alerts = events.Tensors("finitune/alert/text_summary")
    assert [alert.step for alert in alerts] == [3]
    assert [scalar.value for scalar in events.Scalars("finitune/skipped")] == [0, 0, 1, 0, 0, 0, 0, 0]
    (table,) = (tmp_path / "csv").rglob("metrics.csv")
    assert "finitune/grad_norm" in table.read_text()


def test_a_fault_of_our_own_leaves_the_training_alone(tmp_path, monkeypatch, capsys):
    def broken(*args, **kwargs):
        raise RuntimeError("ours")

    pl = importlib.import_module(PACKAGES[0])
    monkeypatch.setattr("finitune.integrations.lightning.watch", broken)
    trainer, _ = fit(pl, tmp_path, bad=())
    assert trainer.global_step == 8
    assert "this training is not watched (RuntimeError: ours)" in capsys.readouterr().err


def two_inputs(pl):
    """A module whose forward takes other arguments than its training step, and divides by what may be 0."""

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x, counts):
            return self.layer(x).squeeze(1) / counts

        def training_step(self, batch, _index=0):
            x, counts, y = batch
            return torch.nn.functional.mse_loss(self(x, counts), y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(18, 4), torch.ones(18), torch.randn(18))
    data.tensors[1][7] = 0  # of step 3
    return Module(), torch.utils.data.DataLoader(data, batch_size=3)


def of_trainer(pl, directory):
    module, loader = two_inputs(pl)
    pl.Trainer(
        accelerator="cpu", strategy="ddp", devices=1, use_distributed_sampler=False, max_epochs=1, logger=False,
        default_root_dir=directory,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[LightningCallback()],
    ).fit(module, loader)  # fmt: skip
    return directory / "finitune"


def of_fabric(pl, directory):
    fabric = importlib.import_module("lightning.fabric").Fabric(accelerator="cpu", devices=1, strategy="ddp")
    fabric.launch()
    module, loader = two_inputs(pl)
    model, optimizer = fabric.setup(module, module.configure_optimizers())
    model.mark_forward_method("training_step")
    with watch(module, optimizer, run_dir=directory):
        for batch in loader:
            loss = model.training_step(batch)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
    return directory


@pytest.mark.parametrize("of", [of_trainer, of_fabric])
def test_a_step_that_goes_through_the_forward_of_a_wrapper_is_run_again(tmp_path, of):
    """Lightning has DistributedDataParallel call `training_step` as if it were the forward."""
    with mock.patch.dict(os.environ):  # Lightning leaves the address of its process group there
        try:
            recording = Recording.load(of(importlib.import_module(PACKAGES[0]), tmp_path))
        finally:
            torch.distributed.destroy_process_group()
    assert [event["step"] for event in recording.events("incident")] == [3]
    (event,) = recording.events("origin")
    assert (event["repeats"], event["origin"]["op"]) == (True, "aten.div")
    assert "return self.layer(x).squeeze(1) / counts" in event["origin"]["line"]
    assert not recording.events("broken")
