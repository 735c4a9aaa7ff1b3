"""Several runs beside each other: what each came to, from where on they differ, and in which settings."""

import json
import math

import pytest

import finitune
from finitune.cli.main import main
from finitune.diagnosis.side_by_side import compare
from finitune.finding import UnreadableInput
from finitune.recording import Recorder

LOSSES = [2.5, 2.4, 2.3, 2.2]


@pytest.fixture
def runs(tmp_path):
    def recorded(name, lr, losses):
        recorder = Recorder(tmp_path / name)
        recorder.header({"optimizer": {"name": "AdamW", "lr": lr, "source": name}}, command=["t.py", "--lr", str(lr)])
        for step, loss in enumerate(losses, start=1):
            recorder.step(step, loss=loss, grad_norm=loss / 2)
            if math.isnan(loss):
                recorder.event("incident", step=step, id=1, symptom="nonfinite-loss", text="loss is nan")
        recorder.close()
        return str(tmp_path / name)

    return [recorded("a", 1e-4, LOSSES), recorded("b", 1e-2, [2.5, 2.4, 9.0, math.nan])]


def test_fires_with_what_differs(runs):
    result = compare(*runs)
    assert [one.verdict for one in result.runs] == ["healthy", "incident"]
    assert (result.verdict, result.differ_from) == ("incident", 3)
    assert [one.first_bad_step for one in result.runs] == [None, 4]
    assert [one.last_loss for one in result.runs] == [2.2, 9.0]
    assert result.settings == {"optimizer.lr": [1e-4, 1e-2], "command": ["t.py --lr 0.0001", "t.py --lr 0.01"]}


def test_stays_quiet_about_two_equal_runs(runs):
    result = compare(runs[0], runs[0])
    assert (result.differ_from, result.settings) == (None, {})
    assert "the same at every step" in str(result)


def test_the_command_line_prints_it_and_writes_a_page(runs, capsys):
    assert main(["diagnose", *runs]) == 1
    assert "losses: different from step 3 on" in capsys.readouterr().out
    assert main(["diagnose", *runs, "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["schema"] == "finitune.comparison/1"
    assert main(["report", *runs]) == 0
    page = capsys.readouterr().out.strip()
    assert page == f"{runs[0]}/comparison.html"
    text = (finitune.report(runs[0], beside=runs[1:])).read_text()
    assert "<script" not in text
    assert "optimizer.lr" in text
    assert main(["diagnose", *runs, "--gpu", "V100"]) == 2


def test_python_compares_as_the_command_line_does(runs, capsys):
    result = finitune.diagnose(*runs)
    assert result == compare(*runs)
    main(["diagnose", *runs])
    assert capsys.readouterr().out.strip() == str(result).strip()
    with pytest.raises(UnreadableInput, match="several runs are only compared"):
        finitune.diagnose(*runs, gpu="V100")


def test_the_page_has_the_curves_of_both_and_lets_no_markup_in(runs, tmp_path):
    hostile = tmp_path / "<script>alert(1)<"
    (tmp_path / "b").rename(hostile)
    text = finitune.report(runs[0], beside=[hostile]).read_text()
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;" in text
    assert text.count("<svg") == 1
    assert "Gradient norm before clipping" in text
    assert '<h1 class="bad">2 runs, 1 with an incident</h1>' in text


def test_a_page_of_runs_without_a_number_has_no_chart(tmp_path):
    for name in "ab":
        recorder = Recorder(tmp_path / name)
        recorder.header({}, command=["t.py"])
        recorder.close()
    assert "<svg" not in finitune.report(tmp_path / "a", beside=[tmp_path / "b"]).read_text()


def test_a_folder_without_a_run_is_one_line(runs, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["diagnose", runs[0], str(tmp_path / "empty")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
