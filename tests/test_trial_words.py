"""What users found in words, numbers and manners, where no other test has it; numbers are those of their report."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import finitune
from finitune.causes import lr_too_high
from finitune.chapter import causes
from finitune.cli.main import main
from finitune.diagnosis.ranking import experiments_of, rivals
from finitune.facts import Optimizer
from finitune.finding import Evidence, RankedCause
from finitune.recording import Recording
from finitune.remedies.lower_learning_rate import propose
from finitune.series import Series

PADDED = """
import torch
from torch import nn
torch.manual_seed(0)
class Attention(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb, self.q, self.k, self.o = nn.Embedding(100, d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, 100)
    def forward(self, ids, mask):
        x = self.emb(ids); causal = torch.tril(torch.ones(12, 12, dtype=torch.bool))
        w = self.q(x) @ self.k(x).transpose(1, 2) / 32 ** .5
        return self.o(w.masked_fill(~(mask[:, None, :] & causal), float("-inf")).softmax(-1) @ x)
m = Attention(); opt = torch.optim.AdamW(m.parameters(), lr=1e-3)
for i in range(2):
    ids = torch.randint(1, 100, (4, 12)); mask = torch.ones(4, 12, dtype=torch.bool)
    mask[2, :3] = False; ids[2, :3] = 0
    labels = ids.flatten().masked_fill(~mask.flatten(), -100)
    loss = nn.functional.cross_entropy(m(ids, mask).flatten(0, 1), labels)
    opt.zero_grad(); loss.backward(); opt.step()
"""
BARS = """
import torch
from tqdm import tqdm
m = torch.nn.Linear(4, 1); opt = torch.optim.SGD(m.parameters(), lr=0.01)
for i in tqdm(range(9)):
    x = torch.randn(2, 4); x[0, 0] = float("nan") if i else 1.0
    loss = m(x).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(program: str, *options: str) -> str:
    pytest.importorskip("torch")
    Path("train.py").write_text(program)
    command = [sys.executable, "-m", "finitune", "run", "--run-dir", "run", *options, "--", sys.executable, "train.py"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240).stderr


@pytest.mark.slow
def test_users_1_a_mask_handed_over_by_position_is_none_that_lets_all_be_seen() -> None:
    run(PADDED)
    first = finitune.diagnose("run").incidents[0].causes[0]
    assert first.cause == "fully-masked-attention-rows"
    assert "pad-right" in {remedy.name for remedy in first.remedies}


def alike() -> Iterator[tuple[str, str]]:
    """Causes whose experiments are the same, so that no result tells them apart."""
    declared = {name: sorted(map(repr, experiments_of(name))) for name in causes()}
    yield from ((a, b) for a, b in itertools.combinations(declared, 2) if declared[a] and declared[a] == declared[b])


@pytest.mark.parametrize(("one", "other"), list(alike()))
def test_users_1_nothing_is_proved_while_a_rival_predicts_the_same(one: str, other: str) -> None:
    ran = [
        {"arm": e.arm, "cause": one, "expect": e.expect, "result": e.expect, "placebo": e.placebo}
        for e in experiments_of(one)
    ]
    seen = [Evidence(text="prior", bits=-5), Evidence(text="seen", bits=3)]
    first, second = (
        RankedCause(cause=name, confidence=None, proved=name == one, bits=1, evidence=seen, remedies=[])
        for name in (one, other)
    )
    assert rivals(first, [first, second], ran) == [other]


def test_users_13_noise_near_zero_is_no_climb() -> None:
    values = np.concatenate([np.logspace(0, -10, 1400), 1e-10 * (1 + 50 * np.abs(np.sin(np.arange(100))))])
    loss = Series(steps=np.arange(1, 1501), values=values)
    assert not [one for one in lr_too_high.weigh(loss, Optimizer(lr=1e-3)) if one.bits > 0]


def test_users_13_numbers_are_written_as_people_write_them() -> None:
    remedy = propose(Optimizer(lr=2e-5))
    assert remedy is not None
    assert json.dumps(remedy.patch) == '{"learning_rate": 2e-06}'


def test_users_16_an_optimizer_belongs_to_its_model() -> None:
    torch = pytest.importorskip("torch")
    model, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="expected a torch module and an optimizer, found SGD and Linear"):
        finitune.watch(optimizer, model)
    with pytest.raises(ValueError, match="trains no parameter of this model"):
        finitune.watch(other, optimizer)


def test_users_16_each_verb_has_an_example() -> None:
    pytest.importorskip("torch")
    for verb in ("check", "diagnose", "repair", "report", "watch"):
        assert "For instance: `" in (getattr(finitune, verb).__doc__ or ""), verb


@pytest.mark.slow
def test_users_18_a_fault_in_every_step_is_said_rarer_and_rarer_and_never_inside_a_bar() -> None:
    said = run(BARS, "--mode", "observe")
    lines = [line for line in said.splitlines() if "finitune: step" in line]
    assert 2 <= len(lines) < 8, said
    assert all(line.startswith("finitune: ") for line in lines), "a bar stands on the line before"
    assert Recording.load("run").signals["loss"].last_step == 9


def test_users_part_2_an_option_without_its_value_points_to_its_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--gpu"]) == 2
    assert "see finitune check --help" in capsys.readouterr().err


def test_users_19_causes_are_searched_and_a_remedy_is_no_cause(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["causes", "padding"]) == 0
    listed = [line for line in capsys.readouterr().out.splitlines() if line[:1].isalpha()]
    assert 0 < len(listed) < 10
    assert main(["causes", "use-float16"]) == 2
    err = capsys.readouterr().err
    assert "finitune remedies use-float16" in err
    assert err.count("\n") == 1
