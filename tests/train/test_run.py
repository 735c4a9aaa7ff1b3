"""Real trainings by TRL on a CPU, guarded: they learn, are resumed bit for bit, and never lose a good checkpoint."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.train.test_settings import YI, config

for needed in ("torch", "trl", "peft"):
    pytest.importorskip(needed)

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from finitune.finding import UnreadableInput  # noqa: E402
from finitune.recording import Recording  # noqa: E402
from finitune.train import checkpoints as files  # noqa: E402
from finitune.train.checkpoints import NotFinite, ProvedTrainer, checkpoints, last_good, why_damaged  # noqa: E402
from finitune.train.run import train  # noqa: E402

SHORT = (
    "max_steps: 6\nsave_steps: 2\nlogging_steps: 1\nper_device_train_batch_size: 4\nmax_length: 64\n"
    "gradient_checkpointing: false\n"
)
LORA = "use_peft: true\nlora_r: 4\nlearning_rate: 2.0e-3\n"
BARE = "finitune: {report: false}\n"


def weights(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("*.safetensors")
    return load_file(file)


def same(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def start(file: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "finitune", "train", str(file)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for_step(run: subprocess.Popen[str], output: Path, step: int) -> None:
    file = output / "finitune" / "rank00000.jsonl"
    while run.poll() is None and not (file.exists() and f'"kind":"step","step":{step},' in file.read_text()):
        time.sleep(0.01)


@pytest.mark.slow
def test_a_full_training_is_saved_loaded_again_and_recorded(tmp_path: Path, world: Any, capsys: Any) -> None:
    file = config(tmp_path, SHORT + "learning_rate: 3.0e-3\n" + BARE, **world)
    assert train(file) == 0
    said = capsys.readouterr().err
    assert "final: loaded again, as it was trained (logits off by 0" in said
    assert "trained 6 steps, loss" in said
    recording = Recording.load(tmp_path / "out" / "finitune")
    assert recording.signals["loss"].steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert [path.name for path in checkpoints(tmp_path / "out")] == ["checkpoint-6", "checkpoint-4"]
    assert all(why_damaged(path) is None for path in (*checkpoints(tmp_path / "out"), tmp_path / "out" / "final"))
    assert files.sums_of(tmp_path / "out" / "checkpoint-6")["processes"] == 1
    assert train(file) == 0
    assert "this training is finished" in capsys.readouterr().err
    config(tmp_path, SHORT + "learning_rate: 1.0e-3\n" + BARE, **world)
    with pytest.raises(Exception, match="a training with other settings or data"):
        train(file)


@pytest.mark.slow
def test_an_adapter_is_merged_and_the_merge_is_what_was_trained(tmp_path: Path, world: Any, capsys: Any) -> None:
    assert train(config(tmp_path, SHORT + LORA + BARE, **world)) == 0
    assert "merged: loaded again, as it was trained" in capsys.readouterr().err
    assert "base_model" in next(iter(weights(tmp_path / "out" / "final")))
    merged = weights(tmp_path / "out" / "merged")
    assert merged["model.layers.0.self_attn.q_proj.weight"].shape == (32, 32)


@pytest.mark.slow
def test_an_adapter_that_is_left_alone_is_loaded_again_too(tmp_path: Path, world: Any, capsys: Any) -> None:
    text = SHORT.replace("max_steps: 6", "max_steps: 1") + LORA + "finitune: {report: false, merge: false}\n"
    assert train(config(tmp_path, text, **world)) == 0
    assert "final: loaded again, as it was trained" in capsys.readouterr().err
    assert not (tmp_path / "out" / "merged").exists()


@pytest.mark.slow
def test_a_dtype_that_cannot_hold_the_merge_is_not_taken(
    tmp_path: Path, world: Any, monkeypatch: Any, capsys: Any
) -> None:
    """Weights in bfloat16 lose most of an adapter that has learned next to nothing."""
    from transformers import AutoModelForCausalLM

    half = tmp_path / "half"
    shutil.copytree(world["model_name_or_path"], half)
    AutoModelForCausalLM.from_pretrained(half).bfloat16().save_pretrained(half)
    monkeypatch.setattr("finitune.train.export.AGREES", 1e-6)
    text = SHORT + LORA.replace("2.0e-3", "1.0e-6") + BARE
    assert train(config(tmp_path, text, **{**world, "model_name_or_path": half})) == 0
    assert "as it was trained in float32, for bfloat16 loses" in capsys.readouterr().err
    assert weights(tmp_path / "out" / "merged")["lm_head.weight"].dtype == torch.float32


@pytest.mark.slow
def test_a_4_bit_base_is_merged_as_it_was_multiplied(tmp_path: Path, world: Any, capsys: Any) -> None:
    pytest.importorskip("bitsandbytes")
    assert train(config(tmp_path, SHORT + LORA + "load_in_4bit: true\n" + BARE, **world)) == 0
    assert "merged: loaded again, as it was trained" in capsys.readouterr().err
    adapter = weights(tmp_path / "out" / "final")
    assert {tensor.dtype for tensor in adapter.values()} == {torch.float32}, "TRL would train it in bfloat16"


def test_4_bits_without_an_adapter_are_refused(tmp_path: Path, world: Any) -> None:
    with pytest.raises(Exception, match=r"bitsandbytes|are not trained"):
        train(config(tmp_path, SHORT + "load_in_4bit: true\n", **world))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_killed_training_goes_on_bit_for_bit(tmp_path: Path, world: Any) -> None:
    """Killed at a step between two saves; the undisturbed run is the same but for its directory."""
    text = SHORT + LORA + BARE
    assert train(config(tmp_path, text, **world)) == 0
    (tmp_path / "killed").mkdir()
    file = config(tmp_path / "killed", text, **world)
    run = start(file)
    wait_for_step(run, tmp_path / "killed" / "out", 3)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    assert last_good(tmp_path / "killed" / "out")[0] is not None
    assert not (tmp_path / "killed" / "out" / "final").exists()
    assert train(file) == 0
    assert same(tmp_path / "out" / "final", tmp_path / "killed" / "out" / "final")


@pytest.mark.slow
def test_a_damaged_checkpoint_is_left_out_and_so_is_one_after_the_last_step(
    tmp_path: Path, world: Any, capsys: Any
) -> None:
    file = config(tmp_path, SHORT + LORA + BARE, **world)
    assert train(file) == 0
    before = weights(tmp_path / "out" / "final")
    state = tmp_path / "out" / "finitune-train.json"
    unfinished = {**json.loads(state.read_text()), "finished": False}
    for damage in (lambda: None, lambda: (tmp_path / "out" / "checkpoint-6" / "optimizer.pt").write_bytes(b"x")):
        damage()
        state.write_text(json.dumps(unfinished))
        shutil.rmtree(tmp_path / "out" / "final")
        assert train(file) == 0
        after = weights(tmp_path / "out" / "final")
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert "checkpoint-6 is left out: optimizer.pt is not as it was written" in capsys.readouterr().err


@pytest.mark.slow
def test_a_full_disk_keeps_the_earlier_checkpoint(tmp_path: Path, world: Any, monkeypatch: Any, capsys: Any) -> None:
    """A limit on the size of files stands in for the disk: the second save fails in the middle."""
    save, (soft, hard) = ProvedTrainer._save_checkpoint, resource.getrlimit(resource.RLIMIT_FSIZE)

    def limited(self: Any, *args: Any, **kwargs: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft if self.state.global_step < 4 else 2**14, hard))
        try:
            save(self, *args, **kwargs)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    monkeypatch.setattr(ProvedTrainer, "_save_checkpoint", limited)
    file = config(tmp_path, SHORT + LORA + BARE, **world)
    assert train(file) == 1
    said = capsys.readouterr().err
    assert "checkpoint-4: not written: " in said
    assert "checkpoint-2 is whole, and the same command goes on from there" in said
    assert [path.name for path in checkpoints(tmp_path / "out")] == ["checkpoint-2"]
    assert last_good(tmp_path / "out") == (tmp_path / "out" / "checkpoint-2", [])
    assert not (tmp_path / "out" / ".saving").exists()
    monkeypatch.undo()
    assert train(file) == 0
    assert "going on from" in capsys.readouterr().err


def test_ctrl_c_says_where_it_goes_on(tmp_path: Path, world: Any, monkeypatch: Any, capsys: Any) -> None:
    step = ProvedTrainer.training_step

    def interrupted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 3:
            signal.raise_signal(signal.SIGINT)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(ProvedTrainer, "training_step", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background does not have
    try:
        assert train(config(tmp_path, SHORT + LORA + BARE, **world)) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert "interrupted; the same command goes on from" in capsys.readouterr().err
    assert last_good(tmp_path / "out")[0] == tmp_path / "out" / "checkpoint-2"


def test_a_persistent_fault_stops_the_run_with_3_and_no_bad_checkpoint(tmp_path: Path, world: Any, capsys: Any) -> None:
    """The head of the model overflows in every step; nothing of it gets into the weights or onto the disk."""
    broken = tmp_path / "broken"
    shutil.copytree(world["model_name_or_path"], broken)
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(broken)
    with torch.no_grad():
        model.lm_head.weight *= 1e38  # times a hidden state: beyond float32
    model.save_pretrained(broken)
    text = SHORT + "learning_rate: 1.0e-3\n" + BARE
    assert train(config(tmp_path, text, **{**world, "model_name_or_path": broken})) == 3
    assert "3 of them not finite" in capsys.readouterr().err
    held = [weights(path) for path in checkpoints(tmp_path / "out")]
    assert held, "of the weights before, which are finite"
    assert all(bool(torch.isfinite(tensor).all()) for one in held for tensor in one.values())
    assert not (tmp_path / "out" / "final").exists()


def test_an_error_in_the_training_is_one_line_and_recorded(
    tmp_path: Path, world: Any, monkeypatch: Any, capsys: Any
) -> None:
    def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("out of memory, say")

    monkeypatch.setattr(ProvedTrainer, "training_step", broken)
    assert train(config(tmp_path, SHORT + BARE, **world)) == 1
    said = capsys.readouterr().err
    assert "the training ended in RuntimeError: out of memory, say" in said
    assert "Traceback" not in said


def test_a_model_that_cannot_be_loaded_is_one_line_and_leaves_nothing(tmp_path: Path, world: Any) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(world["model_name_or_path"], broken)
    file = broken / "model.safetensors"
    file.write_bytes(file.read_bytes()[:50000])
    with pytest.raises(UnreadableInput, match="no training can begin"):
        train(config(tmp_path, SHORT, **{**world, "model_name_or_path": broken}))
    assert not (tmp_path / "out").exists()


def test_a_value_that_trl_refuses_is_one_line(tmp_path: Path, world: Any) -> None:
    for text in ("optim: fastest_ever\n", "save_strategy: sometimes\n", "label_pad_token_id: 3\n"):
        with pytest.raises(UnreadableInput, match=r"refused by TRL|has no such key"):
            train(config(tmp_path, SHORT + text, **world))
    assert not (tmp_path / "out").exists()


def test_a_directory_with_nan_gets_no_seal(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.tensor([1.0, float("nan")])}, tmp_path / "model.safetensors")
    with pytest.raises(NotFinite, match=r"a in model\.safetensors is not finite"):
        files.seal(tmp_path)
    assert not (tmp_path / files.SUMS).exists()
    save_file({"a": torch.tensor([1.0, 2.0])}, tmp_path / "model.safetensors")
    files.seal(tmp_path)
    assert why_damaged(tmp_path) is None
    (tmp_path / "model.safetensors.nonfinite").write_bytes(b"")
    assert why_damaged(tmp_path) == "model.safetensors.nonfinite is not as it was written"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", "use_peft: true\nload_in_4bit: true\n"])
def test_killed_at_any_moment_nothing_is_lost(kind: str, tmp_path: Path, world: Any) -> None:
    """Three kills, the second of them in the middle of a save."""
    if kind:
        pytest.importorskip("bitsandbytes")
    text = SHORT.replace("max_steps: 6", "max_steps: 24") + kind + "learning_rate: 1.0e-3\n" + BARE
    assert train(config(tmp_path, text, **world)) == 0
    (tmp_path / "killed").mkdir()
    file, chance = config(tmp_path / "killed", text, **world), random.Random(0)
    output = tmp_path / "killed" / "out"
    for moment in range(3):
        run = start(file)
        wait_for_step(run, output, 6 * moment + chance.randint(1, 6))
        while moment == 1 and run.poll() is None and not (output / ".saving").exists():
            time.sleep(0.001)
        run.send_signal(signal.SIGKILL)
        run.communicate()
        assert all(why_damaged(path) is None for path in checkpoints(output))
    assert train(file) == 0
    assert same(tmp_path / "out" / "final", output / "final")


def on_two_processes(file: Path) -> str:
    """What a training on two processes says; its threads are those of one core each."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "finitune",
        "train",
        str(file),
    ]
    around = {**os.environ, "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800, env=around)
    assert done.returncode == 0, done.stderr
    assert [rank.rank for rank in Recording.load(file.parent / "out" / "finitune").ranks] == [0, 1]
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("peft", ["", "use_peft: true\n"], ids=["full", "LoRA"])
def test_two_processes_train_one_model(peft: str, tmp_path: Path, world: Any) -> None:
    """By DDP, and by FSDP2, which holds it in parts: the same to rounding."""
    said, found = {}, {}
    for kind, more in {"ddp": "", "fsdp2": "fsdp: full_shard\nfsdp_config: {fsdp_version: 2}\n"}.items():
        (home := tmp_path / kind).mkdir()
        said[kind] = on_two_processes(config(home, SHORT + "learning_rate: 1.0e-3\n" + peft + more + BARE, **world))
        found[kind] = weights(home / "out" / "final")
    for text in said.values():
        assert text.count(f"{'merged' if peft else 'final'}: loaded again, as it was trained") == 1
    assert list((tmp_path / "fsdp2" / "out" / "checkpoint-6").glob("pytorch_model_fsdp*"))
    assert not list((tmp_path / "ddp" / "out" / "checkpoint-6").glob("pytorch_model_fsdp*"))
    for name, tensor in found["ddp"].items():
        torch.testing.assert_close(found["fsdp2"][name], tensor, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_two_processes_train_one_model_by_deepspeed(tmp_path: Path, world: Any) -> None:
    pytest.importorskip("deepspeed")
    auto = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping", "train_batch_size")
    settings = {"zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True, **dict.fromkeys(auto, "auto")}
    (tmp_path / "zero2.json").write_text(json.dumps(settings))
    text = SHORT + f"learning_rate: 1.0e-3\ndeepspeed: {tmp_path / 'zero2.json'}\n" + BARE
    said = on_two_processes(config(tmp_path, text, **world))
    assert said.count("final: loaded again, as it was trained") == 1


EXAMPLES = ("yi", "medicalgpt", "ludwig", "unsloth", "omnilmm")


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_each_founding_system_is_trained_in_one_command(
    name: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    """Every step finite, the loss lower by a tenth at least, and what is saved is what was trained."""
    home = YI.parent / name
    text = (home / "train.yaml").read_text(encoding="utf-8")
    if "load_in_4bit" in text:
        pytest.importorskip("bitsandbytes")
    (home_copy := tmp_path / name).mkdir()
    for path in home.iterdir():
        (home_copy / path.name).symlink_to(path)
    monkeypatch.chdir(home_copy)
    assert train("train.yaml") == 0
    said = capsys.readouterr().err
    assert "all finite" in said
    assert "loaded again, as it was trained" in said
    losses = Recording.load(home_copy / "output-train" / "finitune").signals["loss"].values
    assert losses[-8:].mean() < 0.9 * losses[:8].mean()
