"""The Yi story: as a whole (slow), and the commands it is made of."""

from __future__ import annotations

import io

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from rich.console import Console

from finitune.demo import yi
from finitune.demo.yi import commands
from finitune.finding import UnreadableInput


def quiet():
    return Console(file=io.StringIO(), width=100)


def test_a_training_script_is_read_line_by_line(tmp_path):
    script = (
        'import sys\nprint(\'{"eval_loss": 3.0}\')\nprint(\'{"step": 1, "loss": 2.5, "loss_scale": 8.0}\')\n'
        'print("{not json")\nprint(sys.argv[1:])\nsys.exit(7)\n'
    )
    (tmp_path / "finetune.py").write_text(script)
    (tmp_path / "training_args.json").write_text('{"max_steps": 1}')
    run = commands.train(tmp_path, quiet(), model="base", prefix="<x>")
    assert (run.code, run.evaluations, [step["loss"] for step in run.steps]) == (7, [3.0], [2.5])
    assert run.command == "$ python finetune.py --model base --data chat.jsonl --eval chat-eval.jsonl --prefix '<x>'"
    assert run.output.splitlines()[0] == "{not json"
    assert "'--prefix', '<x>'" in run.output


def test_a_base_that_cannot_be_made_is_one_line(monkeypatch):
    with pytest.raises(UnreadableInput, match="unexpected keyword argument 'colour'"):
        commands.make_base({"colour": 3}, quiet())
    monkeypatch.setattr(yi, "NEEDED", ("torch", "no_such_package"))
    with pytest.raises(UnreadableInput, match=r"needs no_such_package: pip install 'finitune\[hf\]'"):
        yi.main()


def test_the_users_script_runs_on_a_tiny_base(tmp_path, monkeypatch):
    monkeypatch.setenv("FINITUNE_CACHE", str(tmp_path / "cache"))
    tiny = {"vocabulary": 400, "hidden": 32, "layers": 2, "steps": 2, "rows": 2, "length": 32}
    stage = yi.Stage(directory=tmp_path / "story", console=quiet())
    yi.prepare(stage, tiny)
    shorter = stage.directory / "training_args.json"
    shorter.write_text(shorter.read_text().replace('"max_steps": 40', '"max_steps": 2'))
    run = commands.train(stage.directory, quiet(), model="base")
    assert run.code == 0, run.output
    assert [step["step"] for step in run.steps] == [1, 2]
    assert len(run.evaluations) == 2
    assert "finitune.watch" not in (stage.directory / "finetune.py").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_step_goes_as_told(tmp_path):
    stage = yi.tell(tmp_path / "story", quiet())
    assert [(step.title, step.sound, step.result) for step in stage.steps if not step.sound] == []
    assert (stage.directory / "report.html").stat().st_size > 10_000
