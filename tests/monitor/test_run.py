"""`finitune run -- COMMAND` as a user types it: real processes, their exit codes, and what they print."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest
from safetensors.torch import load_file

from finitune.diagnosis.recorded import diagnose
from finitune.recording import Recording

FINITUNE = Path(sysconfig.get_path("scripts")) / "finitune"

TRAIN = """
import os, sys
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
what, at = sys.argv[1], int(sys.argv[2])
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, 9):
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    if what == "labels" and step >= at:
        if step == at:
            torch.save(model.state_dict(), "good.pt")
        y.fill_(-100)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: {loss.item():.9f}", flush=True)
    if step == at:
        if what == "raise":
            raise RuntimeError("the user's own mistake")
        if what == "exit":
            sys.exit(7)
        if what == "kill":
            os.kill(os.getpid(), 9)
        if what == "wait":
            import time
            time.sleep(60)
print(sum(p.double().sum().item() for p in model.parameters()))
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(TRAIN))
    return path


def run(*command, cwd, **environment):
    """The finished process; nothing here takes half as long."""
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def guarded(*command, cwd, options=(), **environment):
    return run(FINITUNE, "run", "--run-dir", "run", *options, "--", *command, cwd=cwd, **environment)


def python(*words, **more):
    return guarded(sys.executable, *words, **more)


@pytest.mark.slow
def test_a_healthy_program_prints_the_same_and_ends_the_same(script, tmp_path):
    plain = run(sys.executable, script, "no", 0, cwd=tmp_path)
    watched = python(script, "no", 0, cwd=tmp_path)
    assert (watched.returncode, watched.stdout) == (0, plain.stdout)
    assert watched.stderr == f"{plain.stderr}finitune: 8 steps, all finite; recorded in {tmp_path / 'run'}\n"
    recording = Recording.load(tmp_path / "run")
    printed = [float(line.split()[-1]) for line in plain.stdout.splitlines()[:-1]]
    assert recording.signals["loss"].values.tolist() == pytest.approx(printed, abs=1e-8)
    assert [event["event"] for event in recording.events()] == ["end", "exit"]
    assert recording.facts.optimizer is not None
    assert recording.facts.optimizer.name == "AdamW"


@pytest.mark.slow
def test_a_program_that_raises_shows_its_own_traceback_first_and_then_the_incident(script, tmp_path):
    plain = run(sys.executable, script, "raise", 2, cwd=tmp_path)
    watched = python(script, "raise", 2, cwd=tmp_path)
    assert (watched.returncode, watched.stdout) == (1, plain.stdout)
    assert watched.stderr.startswith(plain.stderr)
    first, *more = watched.stderr[len(plain.stderr) :].splitlines()
    assert first == "finitune: step 2: the program ended in RuntimeError: the user's own mistake"
    place = more[0].removeprefix("  raised at").strip()
    assert place == """train.py:25: raise RuntimeError("the user's own mistake")"""
    assert "finitune" not in plain.stderr
    (crash,) = Recording.load(tmp_path / "run").events("incident")
    assert (crash["symptom"], crash["step"], crash["last_good"]) == ("crash", 2, 2)


@pytest.mark.slow
def test_a_persistent_fault_ends_with_3_and_the_last_good_weights(script, tmp_path):
    import torch

    done = python(script, "labels", 4, cwd=tmp_path)
    assert done.returncode == 3
    assert done.stdout.splitlines()[-1].startswith("step 5: ")
    assert "Traceback" not in done.stderr
    assert "aten.nll_loss_forward" in done.stderr
    assert "the fault persists (3 steps in a row)" in done.stderr
    saved = load_file(tmp_path / "run" / "last-good" / "model.safetensors")
    good = torch.load(tmp_path / "good.pt")
    assert saved.keys() == good.keys()
    assert all(torch.equal(saved[name], good[name]) for name in good)
    (incident,) = diagnose(tmp_path / "run").incidents
    assert (incident.step, incident.last_step, incident.action) == (4, 6, "stopped")
    assert incident.origin.op == "aten.nll_loss_forward"


@pytest.mark.slow
def test_a_program_of_a_library_alone(tmp_path):
    """As `trl sft`: no line that runs is one of the user's."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "trainer.py").write_text(TRAIN)
    healthy, sick = (
        python("-m", "trainer", *words, cwd=tmp_path, PYTHONPATH=str(tmp_path / "site-packages"))
        for words in (("no", 0), ("labels", 5))
    )
    assert healthy.stderr == f"finitune: 8 steps, all finite; recorded in {tmp_path / 'run'}\n"
    assert sick.returncode == 3
    assert "finitune itself failed" not in sick.stderr
    assert "step 5" in sick.stderr


@pytest.mark.slow
def test_injected_faults_are_found_at_their_steps(script, tmp_path):
    faults = (
        "nan:0:2",
        "bitflip:2:4",
        "inf:2:6",
        "overflow:1:8",
        "nan:0:7:5",
    )  # the last is for a rank that is not here
    done = python(script, "no", 0, cwd=tmp_path, options=[word for fault in faults for word in ("--inject", fault)])
    assert done.returncode == 0, done.stderr
    recording = Recording.load(tmp_path / "run")
    assert [event["step"] for event in recording.events("incident")] == [2, 4, 6, 8]
    assert recording.signals["skipped"].values.tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert not recording.events("broken")
    nan, flip, inf, overflow = diagnose(tmp_path / "run").incidents
    assert (nan.reproducible, flip.reproducible, inf.reproducible, overflow.reproducible) == (True, False, True, True)
    assert flip.causes[0].cause == "hardware-fault-sdc"
    assert nan.origin.module == "0"
    assert inf.origin.module == "2"
    assert overflow.origin.module == "1"


@pytest.mark.parametrize("text", ["nan:0", "zero:0:2", "nan:0:two", "nan:0:2:x"])
def test_an_injection_that_cannot_be_read_is_one_line(script, tmp_path, text):
    done = python(script, "no", 0, cwd=tmp_path, options=["--inject", text])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert text in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
def test_an_injection_into_a_module_that_is_not_there_ends_the_program_before_its_first_step(script, tmp_path):
    done = python(script, "no", 0, cwd=tmp_path, options=["--inject", "nan:no.such.module:2"])
    assert (done.returncode, done.stdout) == (2, "")
    assert "--inject nan:no.such.module:2: no such module in Sequential" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_subprocess_that_trains_is_watched(script, tmp_path):
    launcher = tmp_path / "launch.py"
    launcher.write_text(
        "import subprocess, sys\nsys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)\n"
    )
    done = python(launcher, script, "labels", 4, cwd=tmp_path)
    assert done.returncode == 3
    assert len(Recording.load(tmp_path / "run").events("stop")) == 1


FORKS = """
import multiprocessing, os, runpy, sys
import torch

def train():
    sys.argv = ["train.py", "no", "0"]
    runpy.run_path("train.py")

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=train)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_of_multiprocessing_that_trains_is_watched(script, tmp_path, method):
    (tmp_path / "launch.py").write_text(FORKS)
    done = python("launch.py", method, cwd=tmp_path, options=["--inject", "nan:0:3"])
    assert done.returncode == 0, done.stderr
    assert [event["step"] for event in Recording.load(tmp_path / "run").events("incident")] == [3]


@pytest.mark.slow
def test_the_exit_code_is_passed_on_and_the_users_own_sitecustomize_still_runs(script, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text(
        "import sys\nif sys.orig_argv[1].endswith('train.py'):\n    print('own sitecustomize', file=sys.stderr)\n"
    )
    done = python(script, "exit", 1, cwd=tmp_path, PYTHONPATH=str(tmp_path / "own"))
    assert done.returncode == 7
    assert done.stderr.splitlines()[0] == "own sitecustomize"
    assert len(Recording.load(tmp_path / "run").signals["loss"]) == 1


@pytest.mark.slow
def test_what_dies_of_a_damaged_weight_names_it(tmp_path):
    program = tmp_path / "sample.py"
    program.write_text(
        "import torch\n"
        "policy = torch.nn.Linear(4, 3)\n"
        "policy.weight.data.view(torch.int32)[1, 2] = 0x7FC00000  # as a damaged file has it\n"
        "optimizer = torch.optim.Adam(policy.parameters())\n"
        "torch.multinomial(torch.softmax(policy(torch.ones(1, 4)), -1), 1)\n"
    )
    ended = python(program, cwd=tmp_path)
    assert ended.returncode == 1
    assert "first bad value  weight (parameter), float32: 1 nan" in ended.stderr
    found = diagnose(tmp_path / "run").incidents[0]
    assert (found.symptom, found.causes[0].cause) == ("crash", "corrupt-checkpoint")


@pytest.mark.slow
def test_the_last_line_reaches_the_launcher_where_stderr_goes_elsewhere(script, tmp_path):
    inner = f"{sys.executable} {script} no 0 2> {tmp_path / 'err.txt'}"
    ended = run(FINITUNE, "run", "--run-dir", tmp_path / "run", "--", "sh", "-c", inner, cwd=tmp_path)
    line = f"finitune: 8 steps, all finite; recorded in {tmp_path / 'run'}\n"
    assert (ended.stderr, (tmp_path / "err.txt").read_text()) == (line, line)


@pytest.mark.slow
def test_kill_9_leaves_a_readable_recording(script, tmp_path):
    done = python(script, "kill", 5, cwd=tmp_path)
    assert done.returncode == 128 + 9
    recording = Recording.load(tmp_path / "run")
    assert recording.problems == []
    assert recording.signals["loss"].steps.tolist() == [1, 2, 3, 4, 5]
    assert recording.facts.model is not None
    (crash,) = recording.events("incident")
    assert (crash["symptom"], crash["step"], crash["text"]) == ("crash", 6, "the program was ended by SIGKILL")


@pytest.mark.slow
def test_a_signal_reaches_the_program(script, tmp_path):
    command = [str(FINITUNE), "run", "--run-dir", "run", "--", sys.executable, str(script), "wait", "2"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not process.stdout.readline().startswith("step 2"):
            pass
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGTERM
    assert len(Recording.load(tmp_path / "run").signals["loss"]) >= 2


def test_a_command_without_training_says_so_in_one_line(tmp_path):
    done = python("-c", "import torch; print('nothing to learn')", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "nothing to learn\n")
    assert done.stderr.count("\n") == 1
    assert "no training step was seen" in done.stderr


WITHIN_COMPILED = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())

@torch.compile(backend="eager")
def step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()

for _ in range(3):
    step(torch.randn(4, 4))
"""


@pytest.mark.slow
def test_a_step_that_is_compiled_as_a_whole_is_seen_or_the_reason_is_said(tmp_path):
    """Whether the compiler takes the backward into its graph depends on the version of torch."""
    done = python("-c", WITHIN_COMPILED, cwd=tmp_path)
    assert done.returncode == 0
    unseen = "no training step was seen: backward and step run within a function that torch.compile has compiled"
    assert ("steps, all finite" in done.stderr) is not (unseen in done.stderr)


def test_a_command_that_does_not_exist_is_one_line(tmp_path):
    done = guarded("no-such-command-anywhere", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "no-such-command-anywhere" in done.stderr
    assert not (tmp_path / "run").exists()


TRAINER = """
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.set_num_threads(1)
config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=32,
)
model = LlamaForCausalLM(config)
rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(64, (32, 16))]
arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=6, logging_steps=1,
    learning_rate=1e-3, lr_scheduler_type="linear", report_to="none", use_cpu=True, save_strategy="no",
    disable_tqdm=True, logging_nan_inf_filter=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=rows)
trainer.train()
assert all(p.isfinite().all() for p in model.parameters())
"""


@pytest.mark.slow
def test_hf_trainer(tmp_path):
    (tmp_path / "train.py").write_text(TRAINER)
    done = python("train.py", cwd=tmp_path, options=["--inject", "nan:model.layers.1.mlp:3"])
    assert done.returncode == 0, done.stderr
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    (incident,) = diagnose(tmp_path / "run").incidents
    assert (incident.step, incident.symptom, incident.action) == (3, "nonfinite-loss", "skipped-step")
    assert incident.origin.module == "model.layers.1.mlp"
    assert incident.reproducible
    assert incident.bit_for_bit

    (log,) = recording.events("log")
    assert (log["true"], log["steps"]) == ("nan", [3])
    assert "the trainer shows loss" in done.stderr
    assert "the loss of step 3 was nan" in done.stderr

    rates = recording.signals["lr"].values.tolist()
    assert len(rates) == 6
    assert rates[3] == rates[2], "the schedule did not advance on the step that was discarded"
    assert rates[0] > rates[1] > rates[2]
    assert rates[3] > rates[4] > rates[5]
    assert recording.signals["skipped"].values.tolist() == [0, 0, 1, 0, 0, 0]
