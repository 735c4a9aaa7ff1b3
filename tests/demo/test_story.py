"""Stories: what `story.yaml` may say, what passes and what fails, and the laptop that they run on."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from finitune.cli.main import main
from finitune.demo import runner, story
from finitune.finding import UnreadableInput
from finitune.recording import Recorder

LAPTOP = str(runner.LAPTOP)


def write(directory, *steps, **more):
    directory.mkdir(exist_ok=True)
    text = yaml.safe_dump({"title": "A toy", "needs": ["json"], "steps": list(steps), **more})
    (directory / "story.yaml").write_text(text)
    return directory


def run_story(tmp_path, *steps):
    """The stage after a story of `steps`, and what was printed."""
    example = write(tmp_path / "toy", *steps)
    screen = io.StringIO()
    stage = runner.run_story(story.read(example), tmp_path / "shown", Console(file=screen, width=200))
    return stage, screen.getvalue()


def step(run, name="one", **expect):
    return {"name": name, "says": "What happens.", "run": run, "expect": expect}


def only(tmp_path, run, **expect):
    (tmp_path / "toy").mkdir(exist_ok=True)
    stage, _ = run_story(tmp_path, step(run, **expect))
    return stage.steps[0]


def test_a_step_that_passes_shows_the_lines_that_say_so(tmp_path):
    printed = r"printf '\033[31mloss=nan\033[0m\rat step 3 of 5\n'; echo why >&2; exit 1"
    stage, screen = run_story(
        tmp_path, step(printed, exit="not 0", shows=["^loss=nan$", "step [0-9]", "why"], lacks=["fine"])
    )
    (one,) = stage.steps
    assert one.passed
    assert one.result == "loss=nan; step 3; why; exit code 1"
    assert "passed" in screen
    assert "  at step 3 of 5\n" in screen.replace("\r", "")
    kept = json.loads((stage.directory / "story.json").read_text())
    assert kept["steps"][0]["lines"] == ["loss=nan", "step 3", "why", "exit code 1"]
    assert kept["steps"][0]["passed"] is True
    assert "loss=nan" in (stage.directory / "logs" / "1-one.log").read_text()


@pytest.mark.parametrize(
    ("run", "expect", "why"),
    [
        ("echo fine", {"shows": ["loss=nan"]}, "no line matches loss=nan"),
        ("echo loss=nan", {"lacks": ["nan"]}, "a line matches nan: loss=nan"),
        ("exit 2", {"exit": 0}, r"exit code 2 \(expected 0\)"),
        (["exit 2", "true"], {"exit": 0}, r"exit code 2, 0 \(expected 0\)"),
        ("true", {"exit": "not 0"}, r"exit code 0 \(expected not 0\)"),
        (["exit 3", "exit 1"], {"exit": 3}, r"exit code 3, 1 \(expected 3\)"),
    ],
)
def test_a_step_that_fails_says_why(tmp_path, run, expect, why):
    one = only(tmp_path, run, **expect)
    assert not one.passed
    assert re.search(why, one.result)


def test_the_exit_code_is_that_of_the_last_command(tmp_path):
    assert only(tmp_path, ["exit 3", "exit 1"], exit=1).passed


def test_a_step_that_fails_does_not_hide_the_next_one(tmp_path):
    stage, screen = run_story(tmp_path, step("exit 1", exit=0), step("echo here", name="two", shows=["here"]))
    assert [one.passed for one in stage.steps] == [False, True]
    assert "FAILED" in screen


MISSPELT = '{"bf16": {"enabeld": true}, "zero_optimization": {"stage": 2}}'


@pytest.mark.parametrize(
    ("config", "finds", "passed"),
    [
        (MISSPELT, ["misspelt-setting"], True),
        (MISSPELT, [], False),
        (MISSPELT, ["misspelt-setting", "lr-too-high"], False),
        ('{"bf16": {"enabled": true}}', [], True),
        ('{"bf16": {"enabled": true}}', ["misspelt-setting"], False),
    ],
)
def test_what_check_finds(tmp_path, config, finds, passed):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "ds.json").write_text(config)
    assert only(tmp_path, "finitune check ds.json", finds=finds).passed is passed


def record(directory, losses):
    recorder = Recorder(directory)
    for number, loss in enumerate(losses, start=1):
        recorder.step(number, loss=loss)
    return recorder


@pytest.mark.parametrize(
    ("losses", "passed"),
    [([4.0, 3.0, 2.0], True), ([4.0, 4.1, 4.0], False), ([4.0, float("nan"), 1.0], False), ([1.0], False)],
)
def test_whether_a_run_learns(tmp_path, losses, passed):
    record(tmp_path / "toy" / "finished", losses).close()
    one = only(tmp_path, "true", learns="finished")
    assert one.passed is passed


def test_a_run_that_left_no_recording_has_not_learnt(tmp_path):
    assert only(tmp_path, "true", learns="finished").result == "finished holds no recording"


@pytest.mark.slow
def test_the_cause_that_diagnose_names(tmp_path):
    recorder = record(tmp_path / "toy" / "guarded", [4.0, 4.0])
    recorder.event("incident", id=1, step=2, symptom="nonfinite-loss", action="skipped-step")
    origin = {"module": "model.norm", "op": "aten.mul", "phase": "forward", "dtype": "float16", "peak": 300.0}
    recorder.event("origin", incident=1, step=2, origin=origin, repeats=True)
    recorder.close()
    first = only(tmp_path, "finitune diagnose guarded", cause="no-such-cause")
    assert not first.passed
    assert first.result.startswith("step 2, nonfinite-loss: model.norm, aten.mul (forward); ")
    found = first.result.rpartition("; ")[2].removesuffix(", not proved")
    (tmp_path / "shown").rename(tmp_path / "before")
    assert only(tmp_path, "finitune diagnose guarded", cause=found, proved=False, exit=1).passed
    (tmp_path / "shown").rename(tmp_path / "between")
    assert not only(tmp_path, "finitune diagnose guarded", cause=found, proved=True).passed


def test_a_step_that_asks_of_a_verb_it_does_not_run_is_one_line(tmp_path):
    with pytest.raises(UnreadableInput, match="expects something of finitune check but runs none"):
        only(tmp_path, "true", finds=[])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"titel": "x"}, "unknown key titel"),
        ({"title": 3}, r"title: 3 \(expected text\)"),
        ({"steps": []}, "expected at least one step"),
        ({"steps": [{"name": "one", "runs": "true"}]}, r"steps\[0\]: unknown key runs"),
        ({"steps": [{"name": "one"}]}, r"steps\[0\]: run is missing"),
        ({"steps": [step("true", exits=0)]}, "expect: unknown key exits"),
        ({"steps": [step("true", exit="0")]}, r"exit: '0' \(expected a number or 'not 0'\)"),
        ({"steps": [step("true", shows="x")]}, r"shows: 'x' \(expected a list\)"),
        ({"steps": [step("true", shows=["("])]}, "is no regular expression"),
        ({"steps": [step("true", proved="yes")]}, "expected true or false"),
        ({"needs": ["a b"]}, r"needs: 'a b' \(expected a name"),
    ],
)
def test_a_wrong_story_is_one_line_and_2(tmp_path, monkeypatch, capsys, change, why):
    example = write(tmp_path / "toy", step("true"), **{k: v for k, v in change.items() if k != "steps"})
    if "steps" in change:
        write(tmp_path / "toy", *change["steps"])
    monkeypatch.setattr(story, "stories", lambda: {"toy": example})
    assert main(["demo", "toy"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "story.yaml" in line
    assert re.search(why, line)


def test_needs_are_names_and_versions(tmp_path, monkeypatch, capsys):
    example = write(
        tmp_path / "toy", step("true"), needs=["yaml", "rich>=1", "rich<1", "no_such"], install="pip install it"
    )
    assert story.missing(story.read(example)) == ["rich<1", "no_such"]
    monkeypatch.setattr(story, "stories", lambda: {"toy": example})
    assert main(["demo", "toy"]) == 2
    assert capsys.readouterr().err == "finitune: finitune demo toy needs rich<1, no_such: pip install it\n"


def test_demo_runs_a_story_and_says_how_it_went(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    examples = {
        "good": write(tmp_path / "good", step("true", exit=0)),
        "bad": write(tmp_path / "bad", step("true", exit=1)),
    }
    monkeypatch.setattr(story, "stories", lambda: examples)
    assert (main(["demo", "good"]), main(["demo", "bad"])) == (0, 1)
    assert len(list((tmp_path / "runs").glob("demo-*/story.json"))) == 2
    capsys.readouterr()
    assert main(["demo", "godo"]) == 2
    assert "did you mean good" in capsys.readouterr().err


def test_a_plain_story_stands_in_where_something_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    examples = {
        "toy": write(tmp_path / "toy", step("echo whole", shows=["whole"]), needs=["no_such"]),
        "toy-plain": write(tmp_path / "toy-plain", step("echo plain", shows=["plain"])),
    }
    monkeypatch.setattr(story, "stories", lambda: examples)
    assert main(["demo", "toy"]) == 0
    assert "$ echo plain" in capsys.readouterr().out
    write(tmp_path / "toy", step("echo whole", shows=["whole"]))
    assert main(["demo", "toy"]) == 0
    assert "$ echo whole" in capsys.readouterr().out


def test_every_example_has_a_story_that_can_be_read():
    for path in story.stories().values():
        assert story.read(path).steps


@pytest.mark.parametrize("names", [("bad",), ()])
def test_systems_runs_all_of_them_in_one_table(tmp_path, monkeypatch, capfd, names):
    pytest.importorskip("finitune.demo.systems")
    from finitune.demo import systems

    monkeypatch.chdir(tmp_path)
    examples = {
        "bad": write(tmp_path / "bad", step("exit 1", exit=0)),
        "elsewhere": write(tmp_path / "elsewhere", step("true"), needs=["no_such"]),
        "good": write(tmp_path / "good", step("echo here", shows=["here"])),
    }
    monkeypatch.setattr(story, "stories", lambda: examples)
    assert systems.main(names) == 1
    table = capfd.readouterr().out.rpartition("what was seen")[2]
    assert "exit code 1 (expected 0)" in table
    assert ("needs no_such" in table) is ("here" in table) is (not names)
    assert systems.main(("good",)) == 0
    assert systems.main(("elsewhere",)) == 1


def python(code, *paths, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


BOOTSTRAP = str(Path(LAPTOP).parents[1] / "bootstrap")
SHIMS = "import sys; print(*sorted(h.module for h in sys.meta_path if type(h).__name__ == 'WaitFor'))"


def test_the_laptop_and_finitune_run_work_together_in_either_order(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('hidden')")
    alone = python(SHIMS, LAPTOP, str(tmp_path))
    assert alone[0] == "hidden"
    assert "accelerate.accelerator" in alone
    assert "transformers.trainer" not in alone
    run = {"FINITUNE_RUN_DIR": str(tmp_path / "run")}
    both = [
        python(SHIMS, BOOTSTRAP, LAPTOP, str(tmp_path), **run),
        python(SHIMS, LAPTOP, BOOTSTRAP, str(tmp_path), **run),
        python(SHIMS, BOOTSTRAP, LAPTOP, BOOTSTRAP, str(tmp_path), **run),
    ]
    assert both[0] == both[1] == both[2]
    assert both[0].count("torch") == 2
    assert both[0][0] == "hidden"


def test_finitune_run_never_brings_the_laptop(tmp_path, capfd):
    assert main(["run", "--run-dir", str(tmp_path / "run"), "--", sys.executable, "-c", SHIMS]) == 0
    assert capfd.readouterr().out.split()[:1] == ["deepspeed.runtime.engine"]
    assert LAPTOP not in os.environ.get("PYTHONPATH", "")


@pytest.mark.slow
def test_torch_is_waited_for_even_when_somebody_looks_for_it_first(tmp_path):
    pytest.importorskip("torch")
    code = (
        "import importlib.util; importlib.util.find_spec('torch'); import torch;"
        "a = torch.full((8, 8), 300.0, dtype=torch.float16); print(float((a @ a).max()),"
        "bool(torch._C._dispatch_has_kernel_for_dispatch_key('aten::mm', 'CPU')));"
        "from finitune.monitor.precision import float16_on_cpu as f; print(f._replacement._blocks)"
    )
    assert python(code, LAPTOP) == ["inf", "True", "1"]
    assert python(code) == ["inf", "True", "0"]


@pytest.mark.slow
def test_the_laptop_makes_fp16_real_in_accelerate():
    pytest.importorskip("accelerate")
    code = (
        "from accelerate import Accelerator; a = Accelerator(mixed_precision='fp16', cpu=True);"
        "print(type(a.scaler).__name__, a.native_amp)"
    )
    assert python(code, LAPTOP) == ["GradScaler", "True"]
    assert python(code) == ["NoneType", "False"]


@pytest.mark.slow
def test_the_laptop_lets_deepspeed_do_fp16():
    pytest.importorskip("deepspeed")
    code = (
        "import sys, deepspeed; from deepspeed.accelerator import get_accelerator as g;"
        "sys.stderr.flush(); print('said', g().is_fp16_supported(), sys.modules['deepspeed.comm.torch'].build_shm_op())"
    )
    said = python(code, LAPTOP)
    assert said[said.index("said") + 1 :] == ["True", "None"]


DEEPSPEED = """
import torch, deepspeed
config = {
    "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2},
    "fp16": {"enabled": True, "initial_scale_power": 8}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
}
model = torch.nn.Linear(8, 8)
engine, optimizer, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
engine.backward(engine(torch.ones(2, 8, dtype=torch.half)).float().pow(2).mean())
engine.step()
print("said", type(optimizer.optimizer).__module__, optimizer.cur_scale)
"""


@pytest.mark.slow
def test_deepspeed_trains_in_fp16_on_the_laptop():
    pytest.importorskip("deepspeed")
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29541"}
    said = python(DEEPSPEED, LAPTOP, **alone)
    assert said[said.index("said") + 1 :][:2] == ["torch.optim.adamw", "256"]
