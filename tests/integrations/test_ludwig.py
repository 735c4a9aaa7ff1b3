"""The callback against a stand-in for Ludwig's trainer; with Ludwig itself: tests/systems/test_ludwig.py."""

import importlib
import sys
import types

import pytest
import torch
from tests.monitor.loop import without_the_end
from torch import nn

from finitune.monitor.process import Stopped
from finitune.monitor.watch import watch
from finitune.recording import Recording


class Callback:
    """What `ludwig.callbacks.Callback` is to its heirs."""


class Trainer:
    """What the integration touches of `ludwig.trainers.trainer.Trainer`."""

    def __init__(self, model=None, callbacks=None):
        self.dist_model = model
        self.callbacks = callbacks or []
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if model is not None else None


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8)

    def forward(self, input_ids, factor):
        return self.head(self.embed(input_ids)) * factor


class Outer(nn.Module):
    """As Ludwig's LLM: takes the features, and calls the language model with ids that it has padded itself."""

    def __init__(self):
        super().__init__()
        self.model = Inner()

    def forward(self, features):
        return self.model(input_ids=features[0], factor=features[1])


@pytest.fixture
def ludwig(monkeypatch):
    """The integration, imported beside a stand-in."""
    packages = {
        "ludwig": {}, "ludwig.callbacks": {"Callback": Callback}, "ludwig.trainers": {},
        "ludwig.trainers.trainer": {"Trainer": type("Trainer", (Trainer,), {"__init__": Trainer.__init__})},
    }  # fmt: skip
    for name, content in packages.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "finitune.integrations.ludwig", raising=False)
    yield importlib.import_module("finitune.integrations.ludwig")
    sys.modules.pop("finitune.integrations.ludwig", None)


def train(trainer, factors):
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    for factor in factors:
        total = 0
        total += trainer.dist_model((ids, torch.tensor(factor))).square().mean()
        total.backward()
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()


def progress(loss):
    return types.SimpleNamespace(train_metrics={"output": {"loss": [(1, 1, loss)]}})


def test_watches_the_language_model_and_says_what_the_table_hides(ludwig, tmp_path, capsys):
    trainer = Trainer(Outer())
    callback = ludwig.LudwigCallback(run_dir=tmp_path / "run")
    callback.on_trainer_train_setup(trainer, str(tmp_path), True)
    assert isinstance(callback.monitor.model, Inner)
    train(trainer, [1.0, float("nan"), 1.0])
    callback.on_eval_end(trainer, progress(0.3), str(tmp_path))
    callback.on_trainer_train_teardown(trainer, progress(0.3), str(tmp_path), True)
    assert "the trainer shows loss 0.3; the loss of step 2 was nan" in capsys.readouterr().err
    recording = Recording.load(tmp_path / "run")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["action"]) == (2, "skipped-step")
    assert all(torch.isfinite(p).all() for p in trainer.dist_model.parameters())


def test_is_silent_about_a_table_that_is_true(ludwig, tmp_path, capsys):
    trainer = Trainer(Outer())
    callback = ludwig.LudwigCallback(run_dir=tmp_path / "run")
    callback.on_trainer_train_setup(trainer, str(tmp_path), True)
    train(trainer, [1.0, 1.0])
    callback.on_eval_end(trainer, progress(0.3), str(tmp_path))
    callback.on_trainer_train_teardown(trainer, progress(0.3), str(tmp_path), True)
    assert without_the_end(capsys.readouterr().err) == ""


def test_a_fault_that_persists_ends_the_run_with_code_3(ludwig, tmp_path):
    trainer = Trainer(Outer())
    ludwig.LudwigCallback(run_dir=tmp_path / "run").on_trainer_train_setup(trainer, str(tmp_path), True)
    with pytest.raises(Stopped) as stopped:
        train(trainer, [1.0] + [float("inf")] * 5)
    assert stopped.value.code == 3


def test_takes_over_from_a_watch_that_began_with_the_optimizer(ludwig, tmp_path):
    trainer = Trainer(Outer())
    monitor = watch(trainer.dist_model, trainer.optimizer, run_dir=tmp_path / "run")
    callback = ludwig.LudwigCallback()
    callback.on_trainer_train_setup(trainer, str(tmp_path), True)
    assert callback.monitor is monitor
    assert monitor.model is trainer.dist_model.model
    train(trainer, [1.0, 1.0])
    monitor.close()
    assert len(Recording.load(tmp_path / "run").ranks[0].signals["loss"]) == 2


def test_an_outer_model_that_trains_more_is_watched_whole(ludwig, tmp_path):
    outer = Outer()
    outer.decoder = nn.Linear(2, 2)
    callback = ludwig.LudwigCallback(run_dir=tmp_path / "run")
    trainer = Trainer(outer)
    callback.on_trainer_train_setup(trainer, str(tmp_path), True)
    assert callback.monitor.model is outer
    callback.monitor.close()


def test_a_fault_of_ours_leaves_the_training_alone(ludwig, tmp_path, capsys):
    callback = ludwig.LudwigCallback(run_dir=tmp_path / "run")
    callback.on_trainer_train_setup(types.SimpleNamespace(), str(tmp_path), True)
    callback.on_eval_end(None, None, "")
    assert "this training is not watched (AttributeError" in capsys.readouterr().err


def test_every_trainer_of_a_watched_process_has_the_callback_once(ludwig):
    ludwig.attach()
    trainer = sys.modules["ludwig.trainers.trainer"].Trainer
    assert [type(c) for c in trainer().callbacks] == [ludwig.LudwigCallback]
    own = ludwig.LudwigCallback()
    assert trainer(callbacks=[own]).callbacks == [own]
