"""A loop that calls several modules in one step: all of them are run again, watched, and left as they were."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from finitune.monitor.watch import watch
from finitune.recording import Recording


def train(directory, *, bad_at=None, bad=float("nan"), watched=True):
    """The statistics of the head's batch norm at the end, and the recording."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    head = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    with watch(body, optimizer, run_dir=directory) if watched else torch.enable_grad():
        for step in range(1, 7):
            x, labels = torch.randn(8, 4), torch.randint(0, 2, (8,))
            scores = head(body(x))
            loss = F.cross_entropy(scores * (bad if step == bad_at else 1.0), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [head[0].running_mean.tolist(), head[0].running_var.tolist(), head[0].num_batches_tracked.item()]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_statistics_of_every_module_are_put_back(tmp_path, bad):
    alone = train(tmp_path / "alone", bad_at=6, bad=bad, watched=False)
    assert train(tmp_path / "run", bad_at=6, bad=bad) == alone


class Angles(nn.Module):
    def __init__(self):
        super().__init__()
        self.directions = nn.Parameter(torch.eye(3, 4))

    def forward(self, x):
        return torch.acos(F.normalize(x) @ F.normalize(self.directions).T)


def test_a_gradient_that_is_bad_in_the_second_module_is_located_there(tmp_path):
    torch.manual_seed(0)
    body, head = nn.Linear(4, 4), Angles()
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    with watch(body, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 6):
            head.directions.data = torch.eye(3, 4)
            features = body(torch.randn(6, 4))
            if step == 3:  # a sample that is a direction itself: the cosine is 1, where acos has no derivative
                features = torch.cat([features[:5], 8 * head.directions[:1].detach()])
            loss = head(features).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    (origin,) = (event["origin"] for event in Recording.load(tmp_path / "run").events("origin"))
    assert origin["module"] == "Angles"
    assert origin["phase"] == "backward"
    assert "acos" in origin["line"]


class Ratio(nn.Module):
    """One frequency per feature, none below 0; what it takes of them beside its output is a penalty."""

    def __init__(self):
        super().__init__()
        self.frequencies = nn.Parameter(torch.linspace(0.05, 1.0, 4))
        self.register_buffer("direction", torch.zeros(4))
        self.penalty = torch.zeros(())

    def forward(self, x):
        with torch.no_grad():
            self.direction.copy_(self.frequencies / self.frequencies.norm())
        self.penalty = (self.direction * self.frequencies).sum()
        return x + torch.sin(self.frequencies * x) / self.frequencies.clamp(min=0)


def test_a_bad_input_that_another_model_puts_out_is_located_in_that(tmp_path):
    torch.manual_seed(0)
    generator, critic = nn.Sequential(nn.Linear(4, 4), Ratio()), nn.Sequential(nn.Linear(4, 1))
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.01)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
    with watch(critic, of_critic, run_dir=tmp_path / "run") as monitor:
        monitor.add(of_generator, generator)
        for step in range(1, 5):
            if step == 3:
                generator[1].frequencies.data[0] = 0.0
            made = generator(torch.randn(6, 4))
            of_critic.zero_grad()
            critic(made.detach()).square().mean().backward()
            of_critic.step()
            of_generator.zero_grad()
            (critic(made) - 1).square().mean().backward()
            of_generator.step()
    recording = Recording.load(tmp_path / "run")
    assert recording.events("incident")[0]["step"] == 3
    origin = recording.events("origin")[0]["origin"]
    assert (origin["module"], origin["op"], origin["phase"]) == ("1", "aten.div", "forward")


def test_what_a_model_keeps_beside_its_output_is_located_in_it(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Ratio())
    model[1].forward = lambda x: (Ratio.forward(model[1], x), x)[1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 5):
            if step == 3:
                model[1].frequencies.data.zero_()
            loss = model(torch.randn(6, 4)).square().mean() + 0.1 * model[1].penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    recording = Recording.load(tmp_path / "run")
    assert recording.events("incident")[0]["step"] == 3
    origin = recording.events("origin")[0]["origin"]
    assert (origin["op"], origin["phase"]) == ("aten.div", "forward")
    assert "self.frequencies / self.frequencies.norm()" in origin["line"]
