"""Bad buffers: a source where they were bad before the step, none where the step itself has spoilt them."""

from __future__ import annotations

import math

import pytest
import torch
from tests.monitor.loop import BAD, origin
from torch import nn

from finitune.monitor.replay.limits import Limits
from finitune.monitor.watch import watch
from finitune.recording import Recording


class Book(nn.Module):
    def __init__(self, *values):
        super().__init__()
        self.register_buffer("codes", torch.tensor(values))

    def forward(self, z):
        return (z - self.codes).square().mean()


class Holder:
    """An agent that has its modules as attributes, and trains in a method."""

    def __init__(self, tmp_path, book):
        self.book, self.model, self.path = book, nn.Linear(2, 2), tmp_path

    def train(self):
        def loss(step):
            if step == BAD:
                self.book.codes.div_(torch.zeros(2))
            elif step > BAD:
                self.book.codes.fill_(1.0)
            return self.book(self.model(torch.ones(3, 2)))

        return origin(self.path, self.model, loss)


def test_a_codebook_that_nobody_trains(tmp_path):
    seen = Holder(tmp_path, Book(0.0, 1.0)).train()
    assert (seen["phase"], seen["tensor"]) == ("parameter", "self.book.codes")


def test_a_bad_module_that_is_held_but_explains_nothing_is_not_blamed(tmp_path):
    torch.manual_seed(0)
    model, _bad = nn.Linear(2, 2), Book(math.nan, 1.0)  # in a frame that runs
    x = torch.ones(3, 2)
    seen = origin(tmp_path, model, lambda step: (model(x) / (step != BAD)).square().mean())
    assert seen["phase"] != "parameter"


class Running(nn.Module):
    """Keeps the mean of all that it was given."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.head = nn.Linear(2, 1)

    def forward(self, x):
        self.mean.lerp_(x.mean(0), 0.1)
        return self.head(x - self.mean)


def test_a_bad_batch_comes_before_the_statistics_that_it_has_spoilt(tmp_path):
    torch.manual_seed(0)
    model = Running()
    seen = origin(tmp_path, model, lambda step: model(torch.full((4, 2), math.inf if step == BAD else 1.0)).sum())
    assert (seen["phase"], seen["tensor"]) == ("input", "input 0")


class Counts(nn.Module):
    """It keeps what it was given, in a buffer that its own forward reads."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.ones(3))
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        self.kept = 0.5 * self.kept + x.sum(0) / x.sum()
        return self.head(x / self.kept)


def test_a_buffer_that_the_step_has_spoilt_is_not_its_source(tmp_path):
    torch.manual_seed(0)
    model = Counts()
    seen = origin(tmp_path, model, lambda step: model(torch.full((4, 3), 0.0 if step == BAD else 1.0)).sum())
    assert (seen["phase"], seen["op"], seen["divisor"]) == (
        "forward",
        "aten.div",
        "1 of 1 elements of the divisor are 0",
    )
    assert seen["line"].endswith("self.kept = 0.5 * self.kept + x.sum(0) / x.sum()")
    assert model.kept.isnan().all(), "it is left as the step left it"


@pytest.mark.slow
def test_a_buffer_that_was_spoilt_between_two_steps_is_the_source(tmp_path):
    torch.manual_seed(0)
    model = Counts()

    def loss(step):
        if step == BAD:
            model.kept[1] = math.nan
        return model(torch.ones(4, 3)).sum()

    seen = origin(tmp_path, model, loss)
    assert (seen["phase"], seen["tensor"]) == ("parameter", "kept")


def test_a_replay_leaves_a_buffer_that_the_step_has_put_in_place_of_another(tmp_path):
    model, left = Counts(), []

    def loss(step):
        assert step == 1 or model.kept is left[-1]
        value = model(torch.rand(4, 3)).sum() * (math.nan if step == BAD else 1.0)
        left.append(model.kept)
        return value

    assert origin(tmp_path, model, loss)["op"] == "aten.mul"


class Codebook(nn.Module):
    """Writes a mean of what it is given through `data`, which counts no writes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, z):
        self.mean.data.lerp_(z.detach().mean(0), 0.1)
        return z + 0.1 * self.mean


def test_a_codebook_that_a_bad_sample_has_spoilt_is_not_the_origin(tmp_path):
    torch.manual_seed(0)
    encoder, codebook, decoder = nn.Linear(3, 2), Codebook(), nn.Linear(2, 3)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()])
    with watch(encoder, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, BAD + 1):
            x = torch.randn(4, 3)
            x[1, 2] = math.nan if step == BAD else 0.0
            loss = (decoder(codebook(encoder(x))) - x).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    event, *_ = Recording.load(tmp_path / "run").events("origin")
    assert (event["origin"]["phase"], event["origin"]["rows"]) == ("input", [1])


class Centroids(nn.Module):
    """Follows the mean of the samples that chose each, in a row of its buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("means", torch.eye(2))

    @torch.no_grad()
    def follow(self, x, chosen):
        for n in range(2):
            self.means[n] = 0.9 * self.means[n] + 0.1 * x[chosen == n].mean(0)


class Assigned(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.centroids = nn.Linear(2, 2), Centroids()

    def forward(self, x, chosen):
        z = self.encode(x)
        self.centroids.follow(z, chosen)
        return (z[:, None] - self.centroids.means.clone()).square().mean()


def test_a_row_of_a_buffer_that_the_step_has_spoilt(tmp_path):
    torch.manual_seed(0)
    model, x = Assigned(), torch.randn(4, 2)
    seen = origin(tmp_path, model, lambda step: model(x, torch.tensor([0, 0, 1, 1]) * (step != BAD)))
    assert (seen["op"], seen["module"]) == ("aten.mean", "centroids")
    assert seen["line"].endswith("in follow: self.means[n] = 0.9 * self.means[n] + 0.1 * x[chosen == n].mean(0)")


class Moments(nn.Module):
    """Normalises by the moments of the batch, and keeps their mean."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        out = (x - x.mean(0)) * torch.rsqrt(x.square().mean(0) - x.mean(0) ** 2)
        self.keep(out.detach())
        return out

    def keep(self, out):
        self.mean.lerp_(out.mean(0), 0.1)


@pytest.mark.slow
def test_a_buffer_may_have_been_finite_before_a_step_that_is_not_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(Limits, "why_not", lambda *_, **__: "too little memory")
    torch.manual_seed(0)
    model, batches = nn.Sequential(Moments(), nn.Linear(2, 1)), torch.randn(5, 4, 2)
    batches[BAD] = 0.0
    assert origin(tmp_path, model, lambda step: model(batches[step]).sum()) is None
    assert model[0].mean.isnan().all()
