"""The callback in a real HF Trainer, added by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from finitune.gym.models import tiny  # noqa: E402
from finitune.integrations import TrainerCallback  # noqa: E402
from finitune.recording import Recording  # noqa: E402

IGNORED = -100


def rows(count: int, *, unsupervised: range = range(0)) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(10, 500, (8,), generator=generator) for _ in range(count)]
    return [
        {"input_ids": ids, "labels": torch.full_like(ids, IGNORED) if i in unsupervised else ids}
        for i, ids in enumerate(tokens)
    ]


class InOrder(transformers.Trainer):
    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trainer(directory: Path, data: list[dict[str, Any]], **options: Any) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(directory), use_cpu=True, per_device_train_batch_size=2, logging_steps=1,
        disable_tqdm=True, learning_rate=1e-3, **{"report_to": [], **options},
    )  # fmt: skip
    return InOrder(model=tiny("llama", hidden=32), args=arguments, train_dataset=data, callbacks=[TrainerCallback()])


def test_a_bad_step_is_found_and_the_printed_loss_is_corrected(tmp_path: Path, capsys: Any) -> None:
    trainer(tmp_path, rows(12, unsupervised=range(4, 6)), max_steps=6, save_strategy="no").train()
    recording = Recording.load(tmp_path / "finitune")
    assert [event["step"] for event in recording.events("incident")] == [3]
    assert [event["printed"] for event in recording.events("log")] == [0.0]
    assert "the trainer shows loss 0; the loss of step 3 was nan" in capsys.readouterr().err


def test_two_callbacks_on_one_trainer_correct_the_log_once(tmp_path: Path) -> None:
    """As where the user adds one and `finitune run` another."""
    twice = trainer(tmp_path, rows(12, unsupervised=range(4, 6)), max_steps=6, save_strategy="no")
    twice.add_callback(TrainerCallback())
    twice.train()
    assert [event["step"] for event in Recording.load(tmp_path / "finitune").events("log")] == [3]


@pytest.mark.slow
def test_a_resumed_training_goes_on_counting_and_keeps_the_recording(tmp_path: Path) -> None:
    trainer(tmp_path, rows(16), max_steps=3, save_strategy="steps", save_steps=3).train()
    trainer(tmp_path, rows(16), max_steps=6, save_strategy="no").train(resume_from_checkpoint=True)
    assert Recording.load(tmp_path / "finitune").signals["loss"].steps.tolist() == [1, 2, 3, 4, 5, 6]


def test_a_fault_of_our_own_leaves_the_training_alone(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("ours")

    monkeypatch.setattr("finitune.integrations.transformers.watch", broken)
    assert trainer(tmp_path, rows(4), max_steps=2, save_strategy="no").train().global_step == 2
    assert "this training is not watched (RuntimeError: ours)" in capsys.readouterr().err
