"""A captured step run again from the recording alone: the same cause is proved as was live, or it is said why not."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import nn  # noqa: E402

from finitune.cli.main import main  # noqa: E402
from finitune.diagnosis.recorded import diagnose  # noqa: E402
from finitune.gym.data import batches  # noqa: E402
from finitune.gym.fault import faults  # noqa: E402
from finitune.gym.loop import train  # noqa: E402
from finitune.gym.models import tiny  # noqa: E402
from finitune.monitor.precision.float16_on_cpu import float16_on_cpu  # noqa: E402
from finitune.monitor.process import Stopped  # noqa: E402
from finitune.monitor.proof import prove  # noqa: E402
from finitune.monitor.watch import watch  # noqa: E402
from finitune.recording import Recording  # noqa: E402

FINITUNE = Path(sysconfig.get_path("scripts")) / "finitune"
PROVABLE = [
    ("fp16-activation-overflow", "llama"),
    ("fp16-activation-overflow", "mistral"),  # autocast and a GradScaler
    ("fp16-activation-overflow", "gpt2"),
    ("untrained-token-embeddings", "qwen2"),
    ("all-labels-ignored", "llama"),
]


def recorded(name, family, directory, mode="observe"):
    """The gym's fault, run and recorded; what was experimented live is struck out of the recording."""
    with float16_on_cpu(), contextlib.redirect_stderr(io.StringIO()):
        run = faults()[name].build(family, directory / "model")
        with contextlib.suppress(Stopped, OverflowError), watch(
            run.model, run.optimizer, run_dir=directory / "run", mode=mode
        ):  # fmt: skip
            for step in train(run):
                if step.step > 6:
                    break
    live = diagnose(directory / "run").incidents[0]
    strike_out(directory / "run")
    return directory / "run", live


def strike_out(run_dir, *events):
    path = run_dir / "rank00000.jsonl"
    lines = [
        line for line in path.read_text().splitlines() if json.loads(line).get("event") not in (events or ("arm",))
    ]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return recorded("fp16-activation-overflow", "llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def copy(llama, tmp_path):
    """The recording of a Llama that fails in float16, to be spoilt."""
    return Path(shutil.copytree(llama[0], tmp_path / "run"))


def without_weights(run_dir):
    """As the capture of a large model is; returns the weights that it would have held."""
    (capture,) = run_dir.glob("captures/*.json")
    data = json.loads(capture.read_text())
    file = capture.with_name(data["weights"])
    weights = load_file(file)
    file.unlink()
    capture.write_text(json.dumps({**data, "weights": None}))
    return weights


@pytest.mark.parametrize(("name", "family"), PROVABLE, ids=["/".join(case) for case in PROVABLE])
def test_the_same_cause_is_proved_as_live(name, family, tmp_path):
    run_dir, live = recorded(name, family, tmp_path)
    assert live.causes[0].proved, "live"
    assert not diagnose(run_dir).incidents[0].causes[0].proved
    (result,) = prove(run_dir)
    found = diagnose(run_dir).incidents[0]
    assert (found.causes[0].cause, found.causes[0].proof) == (live.causes[0].cause, live.causes[0].proof), result
    assert "fails again, bit for bit" in result
    assert prove(run_dir) == ["all is proved already"]
    assert not Recording.load(run_dir).problems


def test_an_origin_that_was_not_sought_live_is_found(copy, llama):
    strike_out(copy, "arm", "origin")
    assert diagnose(copy).incidents[0].origin is None
    prove(copy)
    found = diagnose(copy).incidents[0]
    assert found.origin == llama[1].origin
    assert found.causes[0].proved


def test_the_weights_of_the_last_good_step(tmp_path):
    run_dir, live = recorded("fp16-activation-overflow", "llama", tmp_path, mode="guard")
    without_weights(run_dir)
    (result,) = prove(run_dir)
    assert "last-good" in result
    assert diagnose(run_dir).incidents[0].causes[0].proof == live.causes[0].proof


def test_a_directory_of_the_model_in_place_of_the_weights(copy, tmp_path, capsys):
    weights = without_weights(copy)
    (result,) = prove(copy)
    assert "--model DIR" in result
    model = tiny("llama")
    model.load_state_dict(weights)
    model.save_pretrained(tmp_path / "model")
    assert main(["diagnose", str(copy), "--prove", "--model", str(tmp_path / "model")]) == 1
    out, err = capsys.readouterr()
    assert f"with the weights in {tmp_path / 'model'}" in err
    assert "fp16-activation-overflow, proved" in " ".join(out.split())


def test_weights_with_which_the_step_is_sound_prove_nothing(copy, tmp_path):
    without_weights(copy)
    tiny("llama").save_pretrained(tmp_path / "other")
    (result,) = prove(copy, model=tmp_path / "other")
    assert "the step is finite" in result
    assert "nothing is proved" in result
    assert not Recording.load(copy).events("arm")


def test_a_model_that_does_not_fit_is_one_line(copy, tmp_path):
    without_weights(copy)
    tiny("llama", layers=1).save_pretrained(tmp_path / "small")
    (result,) = prove(copy, model=tmp_path / "small")
    assert "no weights for model.layers.1" in result
    (tmp_path / "empty").mkdir()
    assert "no *.safetensors here" in prove(copy, model=tmp_path / "empty")[0]
    assert "no such directory" in prove(copy, model=tmp_path / "absent")[0]


def test_a_step_that_fails_elsewhere_proves_nothing(copy):
    (file,) = copy.glob("captures/*-weights.safetensors")
    weights = load_file(file)
    weights["model.layers.0.mlp.down_proj.weight"][0, 0] = float("nan")
    save_file(weights, file)
    (result,) = prove(copy)
    assert "fails first in model.layers.0.mlp.down_proj (parameter) and not where the run did" in result
    assert not Recording.load(copy).events("arm")


@pytest.mark.parametrize("spoil", ["cut", "json", "format", "outside", "tensor", "absent"])
def test_a_spoilt_capture_is_one_line(copy, spoil):
    (capture,) = copy.glob("captures/*[0-9].json")
    data = json.loads(capture.read_text())
    if spoil == "cut":
        file = capture.with_suffix(".safetensors")
        file.write_bytes(file.read_bytes()[:100])
    elif spoil == "json":
        capture.write_text("{")
    elif spoil == "format":
        capture.write_text(json.dumps({**data, "format": 1}))
    elif spoil == "outside":
        rows = (copy / "rank00000.jsonl").read_text().replace("captures/", "../../captures/")
        (copy / "rank00000.jsonl").write_text(rows)
    elif spoil == "tensor":
        capture.write_text(capture.read_text().replace('"tensor": "0.0.kwargs.input_ids"', '"tensor": "0.0.no"'))
    else:
        capture.unlink()
    (result,) = prove(copy)
    assert result.startswith("step 4: nothing was run: ")
    assert "\n" not in result


def test_a_recording_that_is_still_written_is_left_alone(copy):
    script = (
        "import sys, time; from finitune.recording import Recorder\n"
        "r = Recorder(sys.argv[1]); r.begin(2); print(); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-u", "-c", script, str(copy)], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        (result,) = prove(copy)
        process.kill()
    assert "still being recorded" in result
    assert not list(copy.glob("process*"))


def test_a_model_of_the_users_own_class_is_proved_live_only(tmp_path):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x)

    model = Own()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with contextlib.redirect_stderr(io.StringIO()), watch(model, optimizer, run_dir=tmp_path / "run", mode="observe"):
        model(torch.full((2, 4), float("inf"))).sum().backward()
        optimizer.step()
    assert "--prove" not in diagnose(tmp_path / "run").incidents[0].next_check
    (result,) = prove(tmp_path / "run")
    assert "Own" in result
    assert "finitune.watch" in result


def test_a_loss_outside_of_the_model_and_several_micro_steps(tmp_path):
    """The objective is kept as it was read off the graph."""
    torch.manual_seed(0)
    model = tiny("llama").half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with torch.no_grad():
        model.model.layers[1].mlp.gate_proj.weight.mul_(3000)
        model.model.layers[1].mlp.up_proj.weight.mul_(3000)
    said = contextlib.redirect_stderr(io.StringIO())
    with float16_on_cpu(), said, watch(model, optimizer, run_dir=tmp_path / "run", mode="observe"):
        for batch in batches(2):
            logits = model(batch["input_ids"]).logits[:, :-1].flatten(0, 1)
            (nn.functional.cross_entropy(logits.float(), batch["labels"][:, 1:].flatten()) * 4 / 2).backward()
        optimizer.step()
    strike_out(tmp_path / "run")
    (result,) = prove(tmp_path / "run")
    assert "fails again, bit for bit" in result
    assert diagnose(tmp_path / "run").incidents[0].causes[0].cause == "fp16-activation-overflow"
    assert diagnose(tmp_path / "run").incidents[0].causes[0].proved


def test_a_log_and_a_case_say_what_would_hold_a_step(tmp_path, capsys):
    (tmp_path / "train.log").write_text("{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.1}\n" * 3)
    (tmp_path / "case.json").write_text('{"log": ["loss 0.0 grad_norm nan"]}')
    assert main(["diagnose", str(tmp_path / "train.log"), "--prove"]) == 1
    assert "a log holds no step to run again" in (err := capsys.readouterr().err)
    assert "finitune run -- COMMAND" in err
    assert main(["diagnose", "--case", str(tmp_path / "case.json"), "--prove"]) == 1
    assert "a case holds no step to run again" in capsys.readouterr().err


def test_without_torch_the_diagnosis_is_still_given(copy, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "finitune.monitor.proof")
    assert main(["diagnose", str(copy), "--prove"]) == 1
    out, err = capsys.readouterr()
    assert "torch is not installed" in err
    assert "fp16-activation-overflow" in out


TRAINER = """
import sys
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model
from finitune.gym.faults.fp16_activation_overflow import TOKEN, plant
from finitune.gym.models import tiny

torch.set_num_threads(1)
model = tiny("llama")
with torch.no_grad():
    plant(model, "llama")
model.save_pretrained("base")
model = AutoModelForCausalLM.from_pretrained("base", attn_implementation="eager")
settings = LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
model = get_peft_model(model, settings)
ids = torch.randint(16, 512, (32, 16))
ids[:, 3] = TOKEN
arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=6, logging_steps=1,
    report_to="none", save_strategy="no", disable_tqdm=True, fp16=True, gradient_checkpointing=True,
)
Trainer(model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in ids]).train()
"""


def in_a_process(*words, cwd, laptop=()):
    environment = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "PYTHONPATH": os.pathsep.join([*map(str, laptop), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=800, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["observe", "guard"])
def test_an_adapter_under_hf_trainer_in_float16_is_proved_in_another_process(tmp_path, mode):
    pytest.importorskip("peft")
    laptop = Path(importlib.util.find_spec("finitune").origin).parent / "demo" / "laptop"
    (tmp_path / "train.py").write_text(TRAINER)
    run = (FINITUNE, "run", "--run-dir", "run", "--mode", mode, "--", sys.executable, "train.py")
    code, _, err = in_a_process(*run, cwd=tmp_path, laptop=[laptop])
    assert code == (3 if mode == "guard" else 0), err
    live = diagnose(tmp_path / "run").incidents[0]
    assert live.causes[0].proved
    strike_out(tmp_path / "run")
    if mode == "guard":  # then the adapter lies in last-good, and the base where the run took it from
        without_weights(tmp_path / "run")
    code, out, err = in_a_process(FINITUNE, "diagnose", "run", "--prove", cwd=tmp_path)
    assert code == 1, err
    assert err.count("\n") == 1, err
    assert ("last-good" if mode == "guard" else "the weights of that step") in err
    assert "fails again, bit for bit; 3 experiments prove fp16-activation-overflow" in err
    assert diagnose(tmp_path / "run").incidents[0].causes[0].proof == live.causes[0].proof
    assert "fp16-activation-overflow, proved" in out


SHARDED = """
import sys
import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from finitune.gym.faults.fp16_activation_overflow import TOKEN, plant
from finitune.gym.models import tiny

torch.set_num_threads(1)
get_accelerator().is_fp16_supported = lambda: True
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
model = tiny("llama")
with torch.no_grad():
    plant(model, "llama")
config = {
    "train_micro_batch_size_per_gpu": 2, "fp16": {"enabled": True, "initial_scale_power": 10},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
}
engine, *_ = deepspeed.initialize(model=model, config=config)
for step in range(6):
    ids = torch.randint(16, 512, (2, 16))
    if step >= 2:
        ids[:, 3] = TOKEN
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
"""


@pytest.mark.slow
def test_a_model_that_was_spread_over_ranks_is_proved_whole(tmp_path):
    """While it trains no experiment is run on it, because all ranks would have to take part."""
    pytest.importorskip("deepspeed")
    (tmp_path / "train.py").write_text(SHARDED)
    launch = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    laptop = Path(importlib.util.find_spec("finitune").origin).parent / "demo" / "laptop"
    _, _, err = in_a_process(FINITUNE, "run", "--run-dir", "run", "--", *launch, cwd=tmp_path, laptop=[laptop])
    before = diagnose(tmp_path / "run").incidents[0]
    assert not before.causes[0].proved, err
    assert before.next_check.endswith("--prove")
    _, _, err = in_a_process(FINITUNE, "diagnose", "run", "--prove", cwd=tmp_path)
    assert "last-good" in err
    found = diagnose(tmp_path / "run").incidents[0].causes[0]
    assert (found.cause, found.proved) == ("fp16-activation-overflow", True), err
