"""A finding about a program stands on the line that decides the value, which is the line to edit."""

from __future__ import annotations

from pathlib import Path

import pytest

from finitune.preflight import check

USE = """
args = TrainingArguments("o", bf16=True,
    learning_rate={rate})
Trainer(model="gpt2", args=args, train_dataset=rows).train()
"""
PARSER = (
    "import argparse\np = argparse.ArgumentParser()\np.add_argument(\n    '--rate', type=float,\n    default=0.5)\n"
)
FIELDS = "from dataclasses import dataclass, field\n@dataclass\nclass C:\n    name: str = 'x'\n    rate: float = {}\n"
HF = "parser = HfArgumentParser((C, TrainingArguments))\nc, t = parser.parse_args_into_dataclasses()\n"
DECIDED = {
    "a constant": ("RATE = 0.5\n", "RATE", 1),
    "of constants": ("BASE = 0.25\nRATE = 2 * BASE\n", "RATE", 2),
    "converted": ("RATE = '0.5'\n", "float(RATE)", 1),
    "argparse": (f"{PARSER}a = p.parse_args()\n", "a.rate", 5),
    "known arguments": (f"{PARSER}a, _ = p.parse_known_args()\n", "a.rate", 5),
    "a function that parses": (
        "".join(["import argparse\ndef get():\n", *(f"    {line}\n" for line in PARSER.splitlines()[1:])])
        + "    return p.parse_args()\na = get()\n", "a.rate", 6,
    ),
    "a dataclass": (f"{FIELDS.format('0.5')}c = C()\n", "c.rate", 5),
    "a field": (f"{FIELDS.format('field(default=0.5)')}c = C()\n", "c.rate", 5),
    "the class itself": (FIELDS.format("0.5"), "C.rate", 5),
    "given to a dataclass": (f"{FIELDS.format('0.1')}c = C(\n    rate=0.5)\n", "c.rate", 7),
    "HfArgumentParser": (f"{FIELDS.format('0.5')}{HF}", "c.rate", 5),
    "the first of one": (
        f"{FIELDS.format('0.5')}c = HfArgumentParser(C).parse_args_into_dataclasses()[0]\n", "c.rate", 5,
    ),
    "tyro": (f"import tyro\n{FIELDS.format('0.5')}c = tyro.cli(C)\n", "c.rate", 6),
    "pyrallis": (f"import pyrallis\n{FIELDS.format('0.5')}c = pyrallis.parse(config_class=C)\n", "c.rate", 6),
    "a dict": ("D = {\n    'rate': 0.5,\n}\n", "D['rate']", 2),
}  # fmt: skip
BY_USE = {
    "by position": (f"{FIELDS.format('0.1')}c = C('y', 0.5)\n", "c.rate"),
    "two branches": ("import os\nif os.name:\n    RATE = 0.5\nelse:\n    RATE = 0.5\n", "RATE"),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def line_in(text: str) -> int | None:
    Path("train.py").write_text(text)
    (found,) = [one for one in check("train.py").findings if one.cause == "lr-too-high"]
    return found.where.line


@pytest.mark.parametrize("name", DECIDED)
def test_fires_on_the_line_that_decides(name: str) -> None:
    before, rate, line = DECIDED[name]
    assert line_in(before + USE.format(rate=rate)) == line


@pytest.mark.parametrize("name", BY_USE)
def test_stays_quiet_where_no_line_decides_alone(name: str) -> None:
    """The line that takes the value is named, as for a value that stands there."""
    before, rate = BY_USE[name]
    text = before + USE.format(rate=rate)
    assert line_in(text) == text[: text.index("learning_rate")].count("\n") + 1
    text = USE.format(rate=0.5)
    assert line_in(text) == 3


@pytest.mark.parametrize(("call", "line"), [("train()", 1), ("train(\n  rate=0.5)", 6), ("train(0.5)", 5)])
def test_a_parameter_has_the_line_of_its_caller_or_of_its_default(call: str, line: int) -> None:
    start = "def train(rate=0.5):\n    args = TrainingArguments('o', bf16=True,\n        learning_rate=rate)\n"
    assert line_in(f"{start}    Trainer(model='gpt2', args=args).train()\n{call}\n") == line


def test_what_is_typed_stands_in_the_script() -> None:
    Path("train.py").write_text(f"{PARSER}a = p.parse_args()\n{USE.format(rate='a.rate')}")
    Path("run.sh").write_text("python train.py \\\n  --rate 0.7\n")
    places = {(one.where.file, one.where.line) for one in check("run.sh").findings}
    assert places == {("run.sh", 2)}


def test_the_norm_of_a_loop_has_the_line_of_its_default() -> None:
    Path("train.py").write_text(
        "import torch\nfrom transformers import AutoModel\nCLIP = 0.0\n"
        "m = AutoModel.from_pretrained('gpt2')\no = torch.optim.AdamW(m.parameters(), lr=1e-3)\n"
        "for b in d:\n    with torch.autocast('cuda', dtype=torch.float16):\n        l = m(**b).loss\n"
        "    l.backward()\n"
        "    torch.nn.utils.clip_grad_norm_(m.parameters(), CLIP)\n    o.step()\n"
    )
    (found,) = [one for one in check("train.py").findings if one.cause == "missing-gradient-clipping"]
    assert found.where.line == 3
