"""Losses whose graph is not read: computed of variables that are there, and of what models return when called again."""

from __future__ import annotations

import pytest
import torch
from tests.monitor.loop import BAD, recorded
from torch import nn
from torch.distributions import Dirichlet, kl_divergence
from transformers import BertConfig, BertModel

from finitune.monitor.watch import watch
from finitune.recording import Recording

STEPS, LENGTH = 4, 60


def origin(tmp_path, model, loss_of):
    torch.manual_seed(0)
    recording = recorded(tmp_path, model, loss_of)
    assert not recording.events("broken")
    (incident,) = recording.events("incident")
    assert incident["step"] == BAD
    return recording.events("origin")[-1]["origin"]


class Chain(nn.Module):
    """Scores of a chain, which is walked in far more operators than are read."""

    def __init__(self):
        super().__init__()
        self.moves = nn.Parameter(torch.zeros(3, 3))

    def forward(self, emitted, share):
        score = emitted[:, 0]
        for t in range(1, emitted.shape[1]):
            score = torch.logsumexp(score.unsqueeze(2) + self.moves, 1) + emitted[:, t]
        total = torch.logsumexp(score, 1)
        return (total * share).log()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        config = BertConfig(
            vocab_size=20, hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
        )
        self.bert, self.emit, self.chain = BertModel(config), nn.Linear(12, 3), Chain()

    def forward(self, input_ids):
        return self.emit(self.bert(input_ids=input_ids).last_hidden_state)


def test_a_loss_of_more_operators_than_are_read(tmp_path):
    model = Tagger()

    def compute_loss(inputs):
        share = inputs.pop("share")
        emitted = model(**inputs)
        return model.chain(emitted, share).mean()

    def loss_of(step):
        ids = torch.randint(20, (2, LENGTH))
        return compute_loss({"input_ids": ids, "share": torch.full((2,), 0.5 * (step != BAD))})

    seen = origin(tmp_path, model, loss_of)
    assert (seen["op"], seen["phase"], seen["module"]) == ("aten.log", "forward", "chain")
    assert seen["line"].endswith("in forward: return (total * share).log()")


def test_a_gradient_beside_samples_of_a_distribution(tmp_path):
    """A Dirichlet derives by a function of its own, which is not read, and its graph was used up."""
    guide = nn.Linear(4, 3)
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(guide.parameters(), lr=1e-3)

    def ratio(theta):
        return (theta[0::2] / theta[1::2]).log().sum(1)

    with watch(guide, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, STEPS + 1):
            q = Dirichlet(nn.functional.softplus(guide(torch.ones(4, 4))) + 0.1)
            theta = q.rsample()
            prior = Dirichlet(torch.ones(4, 3))
            apart = (theta - theta.detach()).square().sum() + (step != BAD)
            loss = ratio(theta).mean() + kl_divergence(q, prior).mean() + apart.sqrt()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["symptom"]) == (BAD, "nonfinite-gradient")
    seen = recording.events("origin")[-1]["origin"]
    assert seen["phase"] == "backward"
    assert seen["line"].endswith("loss = ratio(theta).mean() + kl_divergence(q, prior).mean() + apart.sqrt()")


def weighted(logits, classes):
    counts = torch.bincount(classes, minlength=logits.shape[-1]).float()
    return len(classes) / counts


def smoothed(model, x, classes):
    logits = model(x)
    weights = weighted(logits, classes)
    logp = logits.log_softmax(-1)
    return -(logp * weights).mean(-1).sum() / len(x)


def test_an_operand_that_depends_on_what_the_model_has_returned(tmp_path):
    model = nn.Linear(3, 3)
    x = torch.randn(4, 3)
    found = origin(tmp_path, model, lambda step: smoothed(model, x, torch.tensor([0, 1, 1 if step == BAD else 2, 1])))
    assert found["op"] in ("aten.div", "aten.reciprocal")
    assert found["line"].endswith("in weighted: return len(classes) / counts")


def cooled_after(logits, teacher, temperature):
    logq = torch.log_softmax(logits / temperature, -1)
    p = torch.softmax(teacher / temperature, -1)
    return -(p * logq).sum(-1).mean()


def cooled(logits, teacher, temperature):
    p = torch.softmax(teacher / temperature, -1)
    logq = torch.log_softmax(logits / temperature, -1)
    return -(p * logq).sum(-1).mean()


@pytest.mark.parametrize(
    ("cooled", "line"),
    [
        (cooled, "in cooled: p = torch.softmax(teacher / temperature, -1)"),
        (cooled_after, "in cooled_after: logq = torch.log_softmax(logits / temperature, -1)"),
    ],
)
def test_an_operand_within_the_call_that_gives_the_loss(tmp_path, cooled, line):
    """The first operator of the call is named, also where the operand comes from a later one."""
    torch.manual_seed(0)
    model, ids, teacher = Tagger().bert.train(False), torch.arange(4).view(2, 2), torch.randn(2, 2, 12)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, STEPS + 1):
            loss = cooled(model(input_ids=ids).last_hidden_state, teacher, float(BAD - step))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    found = Recording.load(tmp_path / "run").events("origin")[0]["origin"]
    assert found["op"] == "aten.div"
    assert found["line"].endswith(line)
