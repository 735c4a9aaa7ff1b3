"""What users and attackers found, as they typed it, where no other test has it; numbers are those of their reports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import finitune
from finitune.chapter import by_hand, causes, proposed
from finitune.cli.main import main
from finitune.finding import UnreadableInput
from finitune.recording import Recording

YAML = "model_name_or_path: a/b\nstage: sft\nfinetuning_type: full\ndeepspeed: zero3.json\noutput_dir: out\n{rest}"
ZERO = {"zero_optimization": {"stage": 3}, "gradient_accumulation_steps": 8, "train_micro_batch_size_per_gpu": 4}
LOOP = """
import sys, time, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
    loss = model(torch.randn(2, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, flush=True)
    time.sleep(0.05 if len(sys.argv) > 1 else 0)
"""
KD = """
import torch
torch.manual_seed(0)
m = torch.nn.Linear(8, 4)
opt = torch.optim.AdamW(m.parameters(), lr=1e-3)
for i in range(4):
    z = m(torch.randn(4, 8))
    c = torch.randn(4, 4) * 200
    loss = torch.exp((z - c) * (1 if i == 2 else 0.001)).mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""
STD0 = """
import torch
torch.manual_seed(0)
m = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
opt = torch.optim.Adam(m.parameters(), lr=1e-3)
for i in range(9):
    x = torch.randn(4, 8); y = x.sum(1, keepdim=True)
    if i == 7: y = torch.ones(4, 1)
    y = (y - y.mean()) / y.std()
    loss = ((m(x) - y) ** 2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""
MASK = """
import torch
from torch import nn
torch.manual_seed(0)
class Attention(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb, self.q, self.k, self.o = nn.Embedding(100, d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, 100)
    def forward(self, ids, mask):
        x = self.emb(ids)
        w = self.q(x) @ self.k(x).transpose(1, 2) / 32 ** .5
        w = w.masked_fill(~mask[:, None, :], float("-inf")).softmax(-1)
        return self.o(w @ x)
m = Attention(); opt = torch.optim.AdamW(m.parameters(), lr=1e-3)
for i in range(6):
    ids = torch.randint(0, 100, (4, 12)); mask = torch.ones(4, 12, dtype=torch.bool)
    if i == 4: mask[2] = False
    loss = nn.functional.cross_entropy(m(ids, mask).flatten(0, 1), ids.flatten())
    opt.zero_grad(); loss.backward(); opt.step()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def mismatched() -> str:
    Path("zero3.json").write_text(json.dumps(ZERO))
    Path("a.yaml").write_text(YAML.format(rest="gradient_accumulation_steps: 2\nper_device_train_batch_size: 1\n"))
    return "a.yaml"


def test_users_2_auto_goes_to_deepspeed_s_file_alone() -> None:
    path = mismatched()
    before = Path(path).read_text()
    finitune.repair("match-settings", config=[path], apply=True)
    assert Path(path).read_text() == before
    assert json.loads(Path("zero3.json").read_text())["gradient_accumulation_steps"] == "auto"
    assert not [one for one in finitune.check(path).findings if one.severity == "error"]


@pytest.mark.parametrize("key", ["gradient_accumulation_steps", "per_device_train_batch_size", "learning_rate"])
def test_users_2_auto_where_a_number_is_needed_is_refused(key: str) -> None:
    Path("a.yaml").write_text(YAML.format(rest=f"{key}: auto\n").replace("deepspeed: zero3.json\n", ""))
    with pytest.raises(UnreadableInput, match=f"{key}: 'auto'"):
        finitune.check("a.yaml")


def run(program: str, *words: str, python: tuple[str, ...] = ()) -> str:
    """What `finitune run` says on stderr about this program, recorded in `run`."""
    pytest.importorskip("torch")
    Path("train.py").write_text(program)
    watched = [sys.executable, *python, "train.py", *words]
    command = [sys.executable, "-m", "finitune", "run", "--run-dir", "run", "--", *watched]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240).stderr


@pytest.mark.slow
def test_users_14_a_term_that_is_detached_hides_no_overflow() -> None:
    said = run(KD)
    assert "aten.exp" in said
    assert "train.py:9" in said
    assert "not located" not in said
    (incident,) = finitune.diagnose("run").incidents
    assert incident.step == 3
    assert not incident.next_check, "nothing is asked that decides nothing"


@pytest.mark.slow
def test_users_14_the_statement_that_makes_the_target_nan() -> None:
    said = run(STD0)
    assert "4 nan" in said
    assert "train.py:9" in said
    assert "y.std()" in said
    (incident,) = finitune.diagnose("run").incidents
    assert "tenth of the rate" not in incident.next_check


@pytest.mark.slow
def test_users_15_an_empty_row_of_the_mask_is_named() -> None:
    said = run(MASK)
    assert "aten._softmax" in said
    (incident,) = finitune.diagnose("run").incidents
    first = incident.causes[0]
    assert (first.cause, first.strength) in {
        ("fully-masked-attention-rows", "likely"), ("fully-masked-attention-rows", "proved"),
    }  # fmt: skip


@pytest.mark.slow
def test_users_20_the_page_says_what_each_mark_is() -> None:
    run(MASK)
    page = finitune.report("run").read_text()
    assert "None, aten" not in page
    assert "None, None" not in page
    assert "e+09" not in page, "times are dates"
    assert "largest float16" not in page, "in a run in float32"


@pytest.mark.slow
def test_hostile_8_ctrl_c_for_the_launcher_alone_ends_the_training() -> None:
    pytest.importorskip("torch")
    Path("train.py").write_text(LOOP)
    command = [sys.executable, "-m", "finitune", "run", "--run-dir", "run", "--", sys.executable, "train.py", "2000"]

    def heed() -> None:  # tests that run in the background of a shell ignore the signal, and their children would
        signal.signal(signal.SIGINT, signal.default_int_handler)

    # in a session of its own, so that the signal reaches nobody but the launcher
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=heed
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith(b"step 2"):
            pass
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=240)
        assert process.returncode == 130
    assert Recording.load("run").signals["loss"].last_step < 2000


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_hostile_17_a_python_that_is_not_watched_is_said_to_be_so(option: str) -> None:
    said = run("print(1)\n", python=(option,))
    assert "no Python process of this command could be watched (started with -I, -E or -S" in said


def test_hostile_18_the_users_own_sitecustomize_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("own").mkdir()
    Path("own/sitecustomize.py").write_text("HELLO = 'from here'\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["own", os.environ.get("PYTHONPATH", "")]))
    said = run("import sitecustomize, sys\nprint(sitecustomize.HELLO, file=sys.stderr)\n")
    assert "from here" in said


def test_hostile_19_a_table_of_many_columns_is_one_short_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("wide.csv").write_text(",".join(f"c{n}" for n in range(10**5)) + "\n" + ",".join("1" * 10**5) + "\n")
    Path("m").mkdir()
    assert main(["check", "--data", "wide.csv"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert len(err) < 500


@pytest.mark.slow
def test_hostile_20_a_second_run_leaves_the_first_one_s_rows() -> None:
    run(LOOP, "5")
    said = run(LOOP, "2")
    assert Recording.load("run").signals["loss"].last_step == 5
    others = [path for path in Path().iterdir() if path.name.startswith("run-")]
    assert len(others) == 1, said
    assert Recording.load(others[0]).signals["loss"].last_step == 2


FLOAT16 = """
import torch
torch.manual_seed(0)
class Block(torch.nn.Module):
    def __init__(s):
        super().__init__(); s.up = torch.nn.Linear(64, 256); s.down = torch.nn.Linear(256, 64)
    def forward(s, x): return x + s.down(s.up(x) * 40)
class Net(torch.nn.Module):
    def __init__(s):
        super().__init__(); s.layers = torch.nn.ModuleList(Block() for _ in range(6)); s.head = torch.nn.Linear(64, 1)
    def forward(s, x):
        for l in s.layers: x = l(x)
        return s.head(x)
m = Net().half(); opt = torch.optim.SGD(m.parameters(), lr=1e-3)
for i in range(2):
    loss = m(torch.randn(4, 64).half()).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""


@pytest.mark.slow
def test_users_3_what_an_experiment_refuted_is_not_proposed() -> None:
    run(FLOAT16)
    first = finitune.diagnose("run").incidents[0]
    cause = first.causes[0]
    assert cause.cause == "fp16-activation-overflow"
    assert any(term.text.startswith("experiment module-float32=layers.3: non-finite, but") for term in cause.evidence)
    assert "float32-modules" not in {one.name for one in cause.remedies}
    assert cause.remedies
    assert "module of the origin in float32" not in first.next_check, "it was made, and decided nothing"


@pytest.mark.parametrize("name", causes())
def test_users_19_every_do_line_says_what_to_do(name: str) -> None:
    for remedy in [*proposed(causes()[name], {}), *by_hand(causes()[name])]:
        assert remedy.text or remedy.patch or remedy.command
        assert remedy.text != "install a release in which the defect is fixed", "which package, which release?"


def test_hostile_20_a_directory_that_cannot_be_made_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    Path("file").write_text("")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with finitune.watch(model, optimizer, run_dir="file/run"):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert "training goes on, the recording has gaps" in capfd.readouterr().err
