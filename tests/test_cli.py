"""The command line: frozen verbs and options, exit codes, one line for bad input, quiet pipes."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.reports.examples import CHECKED, DIAGNOSIS, record

from finitune import __version__, launch
from finitune.cli.main import INTERRUPTED, main
from finitune.cli.main import finitune as group
from finitune.demo import story
from finitune.finding import CheckResult, Diagnosis, Finding

SURFACE = {
    "causes": ["[NAME]"],
    "check": [
        "--data",
        "--each",
        "--fail-on",
        "--format",
        "--gpu",
        "--model",
        "--quiet",
        "--requirements",
        "-q",
        "[CONFIGS]...",
    ],
    "demo": ["[NAME]"],
    "diagnose": [
        "--case",
        "--config",
        "--data",
        "--fail-on",
        "--format",
        "--gpu",
        "--model",
        "--prove",
        "--requirements",
        "--verbose",
        "-v",
        "[PATHS]...",
    ],
    "repair": [
        "--apply",
        "--config",
        "--data",
        "--dtype",
        "--format",
        "--from",
        "--gpu",
        "--like",
        "--model",
        "--modules",
        "--output",
        "--patch",
        "--requirements",
        "--rows",
        "--seed",
        "--tokens",
        "--undo",
        "--unsafe",
        "[NAME]",
    ],
    "remedies": ["[NAME]"],
    "report": ["--output", "-o", "[RUN_DIR]..."],
    "run": ["--inject", "--mode", "--rerun", "--run-dir", "--signals", "--skip-spikes", "--watch-step", "[WORDS]..."],
    "init": ["--data", "--model", "--output"],
    "train": ["--format", "--gpus", "--json", "--launch-file", "--nodes", "--plan", "CONFIG"],
}


def surface(command: click.Command) -> list[str]:
    names: list[str] = []
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            name = (parameter.name or "").upper()
            bare = name if parameter.required else f"[{name}]"
            names.append(bare + ("..." if parameter.nargs == -1 else ""))
        else:
            names += parameter.opts
    return sorted(names)


def run(*words: object) -> subprocess.CompletedProcess[str]:
    code = "import sys; from finitune.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def one_line(captured: str) -> str:
    assert captured.count("\n") == 1
    assert captured.endswith("\n")
    return captured.strip()


def test_verbs_and_options_are_frozen() -> None:
    """A change here is a change of the contract: say so in CHANGELOG.md."""
    context = click.Context(group)
    verbs = group.list_commands(context)
    found = {verb: surface(importlib.import_module(f"finitune.cli.commands.{verb}").command) for verb in verbs}
    assert found == SURFACE


@pytest.mark.parametrize("verb", SURFACE)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert main(["--help"]) == 0
    commands = capsys.readouterr().out.split("Commands:\n")[1]
    summary = next(line for line in commands.splitlines() if line.startswith(f"  {verb} "))
    assert summary.endswith("."), "not cut short"
    assert not summary.endswith("...")


def test_demo_names_every_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--help"]) == 0
    said = capsys.readouterr().out
    assert [name for name in story.stories() if name.removesuffix("-plain") not in said] == []


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option]) == 0
    assert capsys.readouterr().out == f"finitune {__version__}\n"


def test_no_verb_shows_the_help_and_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "diagnose" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chek"], "finitune: No such command 'chek'; did you mean check?"),
        (["--nope"], "No such option '--nope'"),
        (["check"], "finitune check: Nothing to check"),
        (["check", "--fail-on", "x", "a"], "'x' is not one of 'error', 'warning', 'incomplete', 'info', 'never'"),
        (["check", "nowhere.json"], "nowhere.json: "),
        (["run"], "finitune run: No command given"),
        (["run", "--nope", "python"], "No such option '--nope'"),
        (["run", "--", "no-such-command-anywhere"], "no-such-command-anywhere: "),
        (["run", "--inject", "foo", "--", "true"], "foo"),
        (["run", "--run-dir", "/dev/null", "--", "true"], "/dev/null: file exists (expected a directory to record in)"),
        (["diagnose"], "finitune diagnose: Missing argument 'RUN_DIR|LOG...'"),
        (["diagnose", "a.log", "nowhere.log"], "a.log: no such file or directory (expected a recording or a log)"),
        (["diagnose", "/dev/null"], "/dev/null: a pipe or a device (expected a recording or a log)"),
        (["check", "/dev/zero"], "/dev/zero: a pipe or a device (expected a file: a configuration)"),
        (["check", "--data", "."], ".: is a directory (expected training data"),
        (["check", "\x1b[31mred.json"], r"finitune: \x1b[31mred.json: no such file"),
        (["diagnose", ".", "--gpu", "V100"], "--gpu goes with logs"),
        (["diagnose", "nowhere"], "nowhere: no such file or directory (expected a recording or a log)"),
        (["diagnose", "."], ".: no recording here"),
        (["report", "nowhere"], "nowhere: no such file or directory"),
        (["repair", "reinit-token-row"], "reinit-token-rows"),
        (["repair", "reinit-token-rows", "--seed", "x"], "'x' is not a valid integer"),
        (["causes", "fp16-overflow"], "fp16-activation-overflow"),
        (["causes", "use-float16"], "'use-float16' is a remedy: finitune remedies use-float16"),
        (["remedies", "use-float"], "use-float16"),
        (["remedies", "lr-too-high"], "'lr-too-high' is a cause: finitune causes lr-too-high"),
        (["report"], "finitune report: Missing argument 'RUN_DIR': no run is recorded under runs/ here"),
        (["demo", "nope"], "no demo is called 'nope'"),
    ],
)
def test_bad_usage_and_bad_input_are_one_line_and_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    line = one_line(err)
    assert line.startswith("finitune")
    assert said in line


@pytest.mark.parametrize("place", ["directory", "unreadable-bytes", "no-permission"])
def test_unreadable_recordings_are_one_line(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank00000.jsonl"
    if place == "directory":
        path.mkdir()
    elif place == "unreadable-bytes":
        path.write_bytes(b"\xff\xfe\x00garbage\n" * 10)
        assert main(["diagnose", str(tmp_path)]) == 0
        assert "damaged" in capsys.readouterr().out
        return
    else:
        path.touch()

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr("finitune.diagnosis.recorded.Recording.load", refuse)
    assert main(["diagnose", str(tmp_path)]) == 2
    assert str(tmp_path) in one_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("severities", "threshold", "code"),
    [
        ([], "info", 0), (["info"], "error", 0), (["warning"], "error", 0), (["error"], "error", 1),
        (["warning"], "warning", 1), (["info"], "warning", 0), (["info"], "info", 1), (["error"], "info", 1),
        (["error"], "never", 0),
    ],
)  # fmt: skip
def test_check_fails_on_severity(
    severities: list[str], threshold: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = [Finding(cause="x", severity=s, message="m") for s in severities]  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr("finitune.preflight.check", lambda *_, **__: CheckResult(findings=findings, not_checked=[]))
    assert main(["check", "a.json", "--fail-on", threshold]) == code


def test_check_passes_everything_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[object] = []
    monkeypatch.setattr("finitune.preflight.check", lambda *a, **k: seen.extend([a, k]) or CHECKED)
    words = "check a.json b.yaml --model m --data d --gpu V100 --requirements r --format json"
    assert main(words.split()) == 1
    assert callable(seen[1].pop("track"))
    assert seen == [("a.json", "b.yaml"), {"model": "m", "data": "d", "gpu": "V100", "requirements": "r"}]
    assert json.loads(capsys.readouterr().out)["verdict"] == "broken"


def test_diagnose(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = str(record(tmp_path / "run"))
    assert main(["diagnose", run_dir]) == 1
    assert capsys.readouterr().out.startswith("step")
    assert main(["diagnose", run_dir, "--fail-on", "never", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "finitune.diagnosis/1"
    monkeypatch.setattr("finitune.diagnosis.recorded.diagnose", lambda _: Diagnosis(incidents=[]))
    assert main(["diagnose", run_dir]) == 0
    assert capsys.readouterr().out == "healthy: no incident\n"


def test_diagnose_verbose_shows_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finitune.diagnosis.recorded.diagnose", lambda _: DIAGNOSIS)
    main(["diagnose", str(tmp_path), "-v"])
    assert "+9.4 bits" in capsys.readouterr().out


def test_diagnose_reads_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1 loss 2.5\nRuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n")
    assert main(["diagnose", str(log)]) == 1
    assert "train.log:2" in capsys.readouterr().out
    assert main(["diagnose", str(log), "--gpu", "V100", "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["verdict"]) == ("finitune.diagnosis/1", "incident")
    log.write_text("step 1 loss 2.5\n")
    assert main(["diagnose", str(log)]) == 0
    assert capsys.readouterr().out.startswith(
        "healthy: no incident in 1 step\n\nnot checked  log (whether the model learned"
    )
    log.write_text("step 0 loss 2.5\nstep 1 loss 2.4\n")
    assert main(["diagnose", str(log)]) == 0
    assert capsys.readouterr().out.startswith("healthy: no incident in 2 steps\n")
    log.write_text("no training here\n")
    assert main(["diagnose", str(log)]) == 2
    assert "expected the log of a training" in one_line(capsys.readouterr().err)


def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = record(tmp_path / "run")
    assert main(["report", str(run_dir), "-o", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert main(["report", str(run_dir), "-o", str(tmp_path / "no" / "page.html")]) == 2


def test_run_hands_over_the_command_and_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(launch, "run", lambda *a, **k: seen.extend([a, k]) or 3)
    words = "run --run-dir r --mode observe --inject nan:lm_head:3 --inject inf:x:4:1 -- python t.py --mode x -- y"
    assert main(words.split()) == 3
    options = {"run_dir": "r", "mode": "observe", "inject": ["nan:lm_head:3", "inf:x:4:1"]}
    options |= {"signals": "economy", "watch_step": None, "rerun": False, "skip_spikes": False}
    assert seen == [(["python", "t.py", "--mode", "x", "--", "y"],), options]
    seen.clear()
    main(["run", "python", "t.py", "--lr", "1"])
    assert seen[0] == (["python", "t.py", "--lr", "1"],)


def test_repair_passes_everything_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[object] = []
    monkeypatch.setattr(
        "finitune.repairs.repair.repair", lambda *a, **k: seen.extend([a, k]) or {"output": "o", "changes": []}
    )
    words = "repair n --model m --data d --tokens 6,7 --rows 1 --config a --config b --output o --seed 3 --format json"
    words += " --gpu V100 --requirements r --like 1,2 --dtype float32 --modules x,y"
    assert main(words.split()) == 0
    options = {
        "model": "m", "data": "d", "tokens": "6,7", "rows": "1", "config": ["a", "b"], "output": "o", "seed": 3,
        "gpu": "V100", "requirements": "r", "like": "1,2", "dtype": "float32", "modules": "x,y", "patch": False,
        "apply": False, "unsafe": False, "from_run": None,
    }  # fmt: skip
    assert seen == [("n",), options]
    assert json.loads(capsys.readouterr().out)["output"] == "o"


def test_causes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["causes"]) == 0
    assert "untrained-token-embeddings" in capsys.readouterr().out
    assert main(["causes", "untrained-token-embeddings"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# untrained-token-embeddings\n")
    assert "## What happens" in out
    assert "\x1b" not in out


def test_real_processes(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run")
    assert run("diagnose", run_dir).returncode == 1
    bad = run("diagnose", tmp_path / "nowhere")
    assert (bad.returncode, bad.stdout) == (2, "")
    one_line(bad.stderr)
    ended = run("run", "--run-dir", tmp_path / "r", "--", sys.executable, "-c", "raise SystemExit(7)")
    assert ended.returncode == 7


def test_help_loads_nothing_heavy() -> None:
    """The time is printed only: timed assertions lie on a busy machine."""
    code = (
        "import sys, time; start = time.perf_counter(); from finitune.cli.main import main; main(['--help']);"
        "print(time.perf_counter() - start, *({'torch', 'numpy', 'rich', 'matplotlib', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    took, *loaded = done.stdout.splitlines()[-1].split()
    print(f"finitune --help: {1000 * float(took):.0f} ms")
    assert loaded == []


def test_what_reads_files_loads_no_torch(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run")
    example = Path(__file__).parents[1] / "examples" / "yi"
    log = tmp_path / "train.log"
    log.write_text(
        "{'loss': 2.1, 'grad_norm': 1.3, 'learning_rate': 1e-05, 'epoch': 0.1}\n{'loss': nan, 'epoch': 0.2}\n"
    )
    commands = [
        ["check", "run_sft_Yi.sh", "--model", "model", "--data", "train.jsonl", "--gpu", "V100"],
        ["diagnose", str(log)],
        ["diagnose", str(run_dir)],
        ["report", str(run_dir), "-o", str(tmp_path / "page.html")],
    ]
    code = (
        f"import sys; from finitune.cli.main import main; codes = [main(words) for words in {commands!r}];"
        "print(codes, *({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=example)
    assert done.stdout.splitlines()[-1] in {"[1, 1, 1, 0]", "[0, 1, 1, 0]"}  # 0 where no tokenizer can read the data


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end differently there")
def test_a_closed_pipe_and_control_c_are_quiet(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run")
    main = "import sys; from finitune.cli.main import main; sys.exit(main())"
    for words in (["diagnose", str(run_dir)], ["diagnose", str(run_dir), "--format", "json"], ["causes"]):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([sys.executable, "-c", main, *words], stdout=writer, stderr=subprocess.PIPE, check=False)
        os.close(writer)
        assert done.stderr == b"", words
    slow = "import signal, sys, time, finitune.diagnosis.recorded as d;"
    slow += "signal.signal(signal.SIGINT, signal.default_int_handler);"  # which a job in the background does not have
    slow += "d.diagnose = lambda _: (print('on', flush=True), time.sleep(60))"
    command = [sys.executable, "-c", f"{slow}\n{main}", "diagnose", str(run_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"on\n"
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
        assert child.returncode == INTERRUPTED
        assert err.strip() == b""


def test_names_that_the_terminal_cannot_encode(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run", text="\u68af\u5ea6\u4e0d\u662f\u6709\u9650\u503c")
    main = "import sys; from finitune.cli.main import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    command = [sys.executable, "-c", main, "diagnose", str(run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert r"\u68af" in done.stdout
    assert done.stderr == ""
