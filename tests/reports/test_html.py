"""The page: says what the diagnosis says, escapes everything, needs no network, copes with any recording."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.reports.examples import DIAGNOSIS, INCIDENT, ORIGIN, OVERFLOW, record

from finitune.diagnosis.recorded import diagnose
from finitune.facts import Facts
from finitune.finding import Diagnosis, Evidence, NotChecked, Remedy, UnreadableInput
from finitune.recording import Recorder, Recording
from finitune.reports import report
from finitune.reports.html import Line, Section, render
from finitune.reports.run_page import page

HOSTILE = "</svg></td></pre></title><script>alert('x')</script><img src=x onerror=alert(1)>&\"'{{ 7*7 }}$x$"
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Reader(HTMLParser):
    """Tags in order, visible text, and whether every element is closed where it should be."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def assert_harmless(html: str) -> Reader:
    reader = Reader(html)
    allowed = {
        "html", "head", "meta", "title", "style", "body", "main", "header", "footer", "section", "p", "h1", "h2", "dl",
        "dt", "dd", "div", "span", "code", "figure", "figcaption", "table", "thead", "tbody", "tr", "th", "td", "pre",
        "svg", "g", "defs", "path", "text", "use", "clippath", "rect",
    }  # fmt: skip
    assert set(reader.tags) <= allowed
    for name, value in reader.attributes:
        assert not name.startswith("on")
        assert name not in ("src", "action", "srcset")
        if name == "href":
            assert (value or "").startswith("#")
        assert "http:" not in (value or "")
        assert "https:" not in (value or "")
    assert "@import" not in html
    assert "url(h" not in html
    return reader


def test_first_screen_says_verdict_place_cause_and_cure(tmp_path: Path) -> None:
    text = assert_harmless(page(Recording.load(record(tmp_path / "run")), DIAGNOSIS)).text
    order = [
        "Incident at step 31",
        "Gradients are not finite (2 of 291 tensors). Update discarded",
        "model.layers.7.mlp, aten.mul (forward), float16: inf in rows 2, 5 at padding positions 0-3",
        "repeatsyes",
        "fp16-activation-overflow, proved: finite with model.layers.7.mlp in float32, not with model.layers.6.mlp",
        "finitune check runs/0815 --gpu x",
        "set bf16.enabled = true, fp16.enabled = false",
        "Signals", "Not finite at 3 steps of 33, the first 31",
        "The captured step", "7 modules in forward order",
        "Experiments", "placebo", "against the cause",
        "Evidence for fp16-activation-overflow (proved)", "+8.0", "+9.4",
        "Timeline", "the log printed 0.0; the value was nan", "last good checkpoint runs/x/last-good",
        "Facts", "2.13.0", "V100",
        "Not checked", "the recording names no file",
    ]  # fmt: skip
    position = 0
    for part in order:
        assert part in text[position:], part
        position = text.index(part, position)


def test_everything_hostile_is_escaped(tmp_path: Path) -> None:
    recording = Recording.load(record(tmp_path / "run", module=HOSTILE, text=HOSTILE))
    origin = dataclasses.replace(ORIGIN, module=HOSTILE, values=HOSTILE, op=HOSTILE, line=HOSTILE)
    remedy = Remedy(name=HOSTILE, safety="advice", command=HOSTILE)
    cause = dataclasses.replace(
        OVERFLOW,
        cause=HOSTILE,
        evidence=[Evidence(text=HOSTILE, bits=math.inf)],
        remedies=[remedy],
        not_asked=[HOSTILE],
    )
    incident = dataclasses.replace(INCIDENT, origin=origin, causes=[cause], message=HOSTILE, symptom=HOSTILE)
    missing = [NotChecked(input=HOSTILE, why=HOSTILE)]
    html = page(recording, Diagnosis(incidents=[incident, incident], not_checked=missing))
    text = assert_harmless(html).text
    assert HOSTILE in text
    assert "49" not in text.split("{{ 7*7 }}")[1][:3]


def test_every_part_of_a_page_is_escaped() -> None:
    section = Section(title=HOSTILE, text=HOSTILE, table=[(HOSTILE, "n"), (HOSTILE, "1,000"), ("short",)])
    html = render(HOSTILE, [section], subject=HOSTILE, text=HOSTILE, lines=[Line(label=HOSTILE, command=HOSTILE)])
    assert HOSTILE in assert_harmless(html).text


def test_each_part_is_shown() -> None:
    section = Section(title="Guarded", text="First.\n\nSecond.", table=[("step", "loss"), ("1", "2.0")])
    reader = assert_harmless(render("Yi", [section, Section(title="Bare")], text="Intro.", tone="good"))
    assert reader.tags.count("h2") == 2
    for part in ("Yi", "Intro.", "First.", "Second.", "loss", "2.0"):
        assert part in reader.text
    assert ("class", "number") in reader.attributes


def test_healthy_run(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for step in range(100):
        recorder.step(step, loss=1.0 / (step + 1))
    recorder.event("end", step=99)
    recorder.close()
    text = assert_harmless(page(Recording.load(tmp_path), Diagnosis(incidents=[]))).text
    assert "No incident" in text
    assert "Steps up to 99" in text
    assert "header.json: missing" in text


def test_empty_recording(tmp_path: Path) -> None:
    (tmp_path / "rank00000.jsonl").touch()
    text = assert_harmless(page(Recording.load(tmp_path), Diagnosis(incidents=[]))).text
    assert "No step was recorded" in text


def test_damaged_events_do_not_matter(tmp_path: Path) -> None:
    record(tmp_path)
    rows = [
        {
            "kind": "event",
            "event": "origin",
            "step": 31,
            "incident": 1,
            "origin": 3,
            "layers": [1, {"peak": "x"}, None],
        },
        {"kind": "event", "event": "origin", "step": 31, "incident": 1, "layers": "no"},
        {"kind": "event", "event": "arm", "step": 31, "incident": 1, "arm": None, "placebo": "yes"},
        {"kind": "event", "event": "novel", "step": 31},
        {"kind": "event", "event": "incident", "step": 31, "id": {}},
        {"kind": "step", "step": 40, "loss": {"a": 1}, "grad_norm": True},
    ]
    with (tmp_path / "rank00000.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "header.json").write_text('{"facts": {"versions": [1], "model": {"path": "\\ud800"}}, "command": null}')
    report(tmp_path, diagnosis=DIAGNOSIS)
    assert_harmless((tmp_path / "report.html").read_text())


def test_many_incidents_are_cut_and_said(tmp_path: Path) -> None:
    incidents = [dataclasses.replace(INCIDENT, step=step, causes=[]) for step in range(1, 301)]
    text = assert_harmless(page(Recording.load(record(tmp_path)), Diagnosis(incidents=incidents))).text
    assert "300 incidents, the first at step 1" in text
    assert "300 incidents in all; the first 200 are listed." in text


def test_a_long_run_gives_a_small_page(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    row = '{"kind":"step","step":%d,"loss":%r,"grad_norm":%s,"lr":1e-4,"loss_scale":65536.0,"skipped":0}\n'
    with (tmp_path / "rank00000.jsonl").open("a") as file:
        for step in range(100_000):
            norm = '"inf"' if step % 997 == 0 else repr(1.0 + step % 13)
            file.write(row % (step, 2.0 + step % 7, norm))
    recorder.close()
    path = report(tmp_path, diagnosis=Diagnosis(incidents=[]))
    assert isinstance(path, Path)
    assert path.stat().st_size < 3_000_000
    html = path.read_text()
    assert "Not finite at 101 steps of 100,000, the first 0." in html
    assert len(re.findall(r"<use[^>]*var\(--bad\)", html)) == 101


def test_output_and_format(tmp_path: Path) -> None:
    run = record(tmp_path / "run")
    assert report(run, tmp_path / "a.html", diagnosis=DIAGNOSIS) == tmp_path / "a.html"
    assert report(run, diagnosis=DIAGNOSIS) == run / "report.html"
    text = report(run, format="json", diagnosis=DIAGNOSIS)
    assert isinstance(text, str)
    assert json.loads(text)["verdict"] == "incident"
    with pytest.raises(UnreadableInput, match="cannot write the report"):
        report(run, tmp_path / "no" / "a.html", diagnosis=DIAGNOSIS)
    with pytest.raises(FileNotFoundError):
        report(tmp_path / "no", diagnosis=DIAGNOSIS)


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_missing_extra_is_one_line(tmp_path: Path, package: str) -> None:
    script = (
        "import sys; sys.modules[sys.argv[1]] = None\n"
        "from finitune.finding import Diagnosis\nfrom finitune.reports import report\n"
        "report(sys.argv[2], diagnosis=Diagnosis(incidents=[]))"
    )
    command = [sys.executable, "-c", script, package, str(record(tmp_path / "run"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    expected = "finitune report needs jinja2 and matplotlib: pip install 'finitune[report]'"
    assert done.stderr.splitlines()[-1] == f"finitune.finding.UnreadableInput: {expected}"


def page_of(directory, symptom, phase, gradients):
    recorder = Recorder(directory)
    recorder.header(Facts())
    recorder.step(1, loss=1.0, grad_norm=math.nan)
    recorder.event(
        "incident", step=1, id=1, symptom=symptom, text="not finite", action="skipped-step", gradients=gradients
    )  # fmt: skip
    origin = {"module": "layers.1", "op": "aten.div", "phase": phase, "dtype": "float32"}
    recorder.event("origin", step=1, incident=1, origin=origin, repeats=True)
    recorder.close()
    return assert_harmless(page(Recording.load(directory), diagnose(directory))).text


MODULES = [{"module": f"layers.{n}", "norm": 0.1 * n, "nonfinite": int(n < 2)} for n in range(4)]


def test_the_gradients_of_a_backward_that_went_wrong_are_drawn(tmp_path):
    text = page_of(tmp_path, "nonfinite-gradient", "backward", MODULES)
    assert "Gradients of 4 modules" in text
    assert "2 of them are not finite" in text
    assert "made in layers.1" in text


@pytest.mark.parametrize(
    ("symptom", "phase", "gradients"),
    [
        ("nonfinite-loss", "forward", MODULES),
        ("nonfinite-gradient", "backward", []),
        ("nonfinite-gradient", "backward", [{"module": "x"}, "no module", None]),
    ],
)
def test_no_gradients_are_drawn_of_another_fault_nor_of_what_was_not_recorded(tmp_path, symptom, phase, gradients):
    assert "Gradients of" not in page_of(tmp_path, symptom, phase, gradients)
