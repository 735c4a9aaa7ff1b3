"""What lies in the user's own code, beside model and operators: named from what the running frames hold."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from tests.monitor.loop import BAD, origin
from torch import nn
from torch.distributions import Beta, Independent, Normal

from finitune.monitor import investigation
from finitune.monitor.user_code.sums import sums
from finitune.monitor.watch import watch
from finitune.recording import Recording


@pytest.mark.parametrize("which", ["weight", "pos_weight"])
def test_weights_of_a_loss_that_the_loop_computes(tmp_path, which, capsys):
    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    x, y = torch.ones(4, 2), torch.tensor([[0.0, 1, 1]] * 4)

    def loss(step):
        weights = 4 / (y.sum(0) if step == BAD else torch.ones(3))
        return F.binary_cross_entropy_with_logits(model(x), y, **{which: weights})

    seen = origin(tmp_path, model, loss)
    assert (seen["phase"], seen["tensor"], seen["op"]) == ("input", "weights", "aten.reciprocal")
    assert "bad-data-sample" not in capsys.readouterr().err, "three classes are not four samples"


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 2)

    def forward(self, x):
        a, b = (1.0 + F.softplus(self.body(x))).unbind(-1)
        return Beta(a, b)


class Gaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 2)

    def forward(self, x):
        return Independent(Normal(self.body(x), 0.5), 1)


def test_a_distribution_that_the_model_puts_out(tmp_path):
    torch.manual_seed(0)
    policy = Policy()
    x, taken = torch.randn(4, 2), torch.tensor([0.2, 0.5, 0.7, 0.9])

    def loss(step):
        action = taken * torch.tensor([1.0, 0.0 if step == BAD else 1.0, 1.0, 1.0])
        return -policy(x).log_prob(action).mean()

    assert origin(tmp_path, policy, loss)["op"] == "aten.xlogy"


def test_a_distribution_within_another(tmp_path):
    torch.manual_seed(0)
    model = Gaussian()
    x = torch.randn(4, 2)
    seen = origin(tmp_path, model, lambda step: -(model(x).log_prob(x) / (0.0 if step == BAD else 1.0)).mean())
    assert seen["op"] == "aten.div"


def spread(of):
    return of.var(0).sqrt()


def test_the_line_of_a_gradient_that_the_loops_own_code_makes(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)

    def loss(step):
        out = model(torch.ones(3, 2) if step == BAD else torch.randn(3, 2))
        return out.square().mean() - spread(out).mean()

    seen = origin(tmp_path, model, loss)
    assert seen["phase"] == "backward"
    assert seen["line"].endswith("in spread: return of.var(0).sqrt()")


def test_a_list_of_losses(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 5):
            losses = []
            for k in range(2):
                scale = 1e38 if (step, k) == (BAD, 1) else 1.0
                losses.append(torch.jit.script(squared)(model(torch.ones(3, 2)) * scale))
            loss = torch.stack(losses).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    event, *_ = Recording.load(tmp_path / "run").events("origin")
    assert "losses.append(" in event["origin"]["line"]


def squared(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean()


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 2)

    def forward(self, x):
        return torch.log((self.net(x).sum(1) * 0 + x[:, 0]).abs())


def test_a_target_that_a_model_puts_out_is_no_sample_of_the_data(tmp_path):
    """It holds -inf alone, which elsewhere is a mask."""
    torch.manual_seed(0)
    actor, critic = Actor(), nn.Linear(2, 1)

    def loss(step):
        x = torch.ones(4, 2)
        x[2, 0] = float(step != BAD)
        with torch.no_grad():
            score = actor(x)
            target = 1 + 0.9 * score
        total = F.mse_loss(critic(torch.ones(4, 2))[:, 0], target)
        kept["total"] = total
        return total.requires_grad_()

    kept = {}
    seen = origin(tmp_path, critic, loss)
    assert (seen["phase"], seen["op"]) == ("forward", "aten.log"), "also where the function has ended"
    assert "in forward: return torch.log(" in seen["line"]
    optimizer = torch.optim.SGD(critic.parameters(), lr=1e-3)
    with watch(critic, optimizer, run_dir=tmp_path / "in line"):
        for step in range(1, 5):
            x = torch.ones(4, 2)
            x[2, 0] = float(step != BAD)
            with torch.no_grad():
                score = actor(x)
                target = 1 + 0.9 * score
            optimizer.zero_grad()
            total = F.mse_loss(critic(torch.ones(4, 2))[:, 0], target)
            total.backward()
            optimizer.step()
    recording = Recording.load(tmp_path / "in line")
    (first,) = recording.events("origin")
    assert (first["origin"]["phase"], first["origin"]["tensor"], first["origin"]["op"]) == (
        "forward", "score", "aten.log"
    )  # fmt: skip
    assert "in forward: return torch.log(" in first["origin"]["line"]
    assert "bad-data-sample" not in {event["arm"] for event in recording.events("arm")}


def test_a_step_that_is_watched_live_lasts_until_that_of_the_same_optimizer(tmp_path):
    """Another optimizer steps in between, as the actor's between two of the critic's."""
    torch.manual_seed(0)
    first, second = nn.Linear(2, 2), nn.Linear(2, 1)
    one, two = (torch.optim.SGD(module.parameters(), lr=1e-3) for module in (first, second))
    with watch(first, one, run_dir=tmp_path / "run"), watch(second, two, run_dir=tmp_path / "run"):
        for step in range(1, 6):
            one.zero_grad()
            scale = torch.tensor([float(step < BAD), 1.0])
            first(torch.ones(3, 2)).sum(0).div(scale).sum().backward(torch.tensor(1.0))
            for p in first.parameters():
                p.grad.mul_(p.grad.sum() * 0 + 1)
            one.step()
            two.zero_grad()
            second(torch.ones(3, 2)).sum().backward()
            two.step()
            if step == BAD + 1:
                break
    events = Recording.load(tmp_path / "run").events("origin")
    assert events[-1]["origin"]["op"].startswith("aten."), events


class Spectral(nn.Module):
    """The log of a target's magnitudes, within the loss."""

    def forward(self, given, wanted):
        target = torch.log(wanted.abs())
        return (given - target).abs().mean()


def test_a_bad_operand_that_a_loss_computes_itself(tmp_path):
    torch.manual_seed(0)
    model, criterion = nn.Sequential(nn.Linear(2, 2), nn.Tanh()), Spectral()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 5):
            x, wanted = torch.ones(4, 2), torch.ones(4, 2)
            wanted[1] = float(step != BAD)
            optimizer.zero_grad()
            loss = criterion(model(x), wanted)
            loss.backward()
            optimizer.step()
    event, *_ = Recording.load(tmp_path / "run").events("origin")
    assert (event["origin"]["op"], event["origin"]["phase"]) == ("aten.log", "forward")
    assert event["origin"]["line"].endswith("target = torch.log(wanted.abs())")


@pytest.mark.slow
def test_a_bad_target_that_an_object_holds_is_a_target(tmp_path):
    """The operator that takes it is the first that puts out something bad, and is not to blame."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, held = torch.ones(4, 2), SimpleNamespace(wanted=torch.ones(4, 2))
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 5):
            held.wanted[1, 0] = -math.inf if step == BAD else 1.0
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), held.wanted)
            loss.backward()
            optimizer.step()
    event, *_ = Recording.load(tmp_path / "run").events("origin")
    assert (event["origin"]["phase"], event["origin"]["tensor"]) == ("input", "target of MseLoss")


def push_away(model, x, facts):
    barred = torch.zeros(facts.shape).masked_fill(facts, float("-inf"))
    negative = model(x) + barred
    weight = torch.softmax(0.7 * negative.detach(), dim=-1)
    return -(weight * F.logsigmoid(-negative)).sum(-1).mean()


def test_a_mask_of_which_a_statement_makes_nan_is_not_to_blame(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(2, 3)

    def of_pairs(step):
        facts = torch.zeros(4, 3, dtype=torch.bool)
        facts[1] = step == BAD
        facts[2, 0] = True
        return push_away(model, torch.ones(4, 2), facts)

    seen = origin(tmp_path, model, of_pairs)
    assert (seen["op"], seen["phase"], seen["rows"]) == ("aten._softmax", "forward", [1])
    assert seen["line"].endswith("weight = torch.softmax(0.7 * negative.detach(), dim=-1)")


def test_the_warnings_of_a_step_are_not_given_again_for_its_replay(tmp_path, recwarn):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 5):
            optimizer.zero_grad()
            model(torch.randn(1 if step == 3 else 8, 4)).var(0).sum().backward()
            optimizer.step()
    (origin,) = Recording.load(tmp_path / "run").events("origin")
    assert (origin["origin"]["op"], origin["repeats"]) == ("aten.var", True)
    assert [one.filename for one in recwarn if "degrees of freedom" in str(one.message)] == [__file__]


def test_a_list_of_weights_is_no_operand(recwarn):
    """To make numbers of tensors with a graph is to be warned of it, in the middle of a healthy run."""

    def predicted(weights, x):
        return x * weights[0] + 1.0

    weights, x = [nn.Parameter(torch.ones(1))], torch.ones(3)
    torch.set_warn_always(True)
    try:
        loss = 2.0 - predicted(weights, x).sum()
        found = [constant.tolist() for _, constant in sums()]
    finally:
        torch.set_warn_always(False)
    assert loss.item() == -4.0
    assert 2.0 in found
    assert not recwarn


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_minus_infinity_that_makes_a_gradient_bad_is_followed_to_what_made_it(tmp_path, kind):
    """A recurrent layer saturates: its output and the loss are finite, and its derivative is not."""
    torch.manual_seed(0)
    model = nn.Sequential(kind(3, 6, batch_first=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, run_dir=tmp_path):
        for step in range(1, 5):
            counts = torch.randint(1, 9, (4, 5, 3)).float()
            if step == 3:
                counts[2, 1, 0] = 0
            x = counts.log()
            optimizer.zero_grad()
            model(x)[0][:, -1].square().mean().backward()
            optimizer.step()
    recording = Recording.load(tmp_path)
    (incident,) = recording.events("incident")
    origin = recording.events("origin")[0]["origin"]
    assert (incident["step"], incident["symptom"]) == (3, "nonfinite-gradient")
    assert (origin["op"], origin["phase"], origin["rows"]) == ("aten.log", "input", [2])
    assert origin["line"].endswith("x = counts.log()")


class Attending(nn.Module):
    """Draws random numbers, so that it is not computed again from its source."""

    def __init__(self):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))

    def forward(self, features, grades=None):
        return {"logits": self.score(features).squeeze(-1)}


def gain_of(scores, grades):
    gain = torch.pow(2.0, grades) - 1
    rank = 0.5 + torch.sigmoid(scores[:, None, :] - scores[:, :, None]).sum(-1)
    return (gain / torch.log2(1 + rank)).sum(-1) / gain.sum(-1)


def test_what_a_function_makes_bad_that_a_function_which_has_ended_has_called(tmp_path):
    """An infinity that is divided is none that was meant; the scores, which are gone, are not asked for."""
    model = Attending()

    def compute_loss(inputs):
        out = model(**inputs)
        return 1 - gain_of(out["logits"], inputs["grades"]).mean()

    def loss_of(step):
        grades = torch.arange(12.0).reshape(3, 4)
        grades[1] += 140.0 * (step == BAD)
        return compute_loss({"features": torch.ones(3, 4, 4), "grades": grades})

    seen = origin(tmp_path, model, loss_of)
    assert (seen["op"], seen["phase"], seen["rows"], seen["tensor"]) == ("aten.pow", "input", [1], "operand of Div")
    assert seen["line"].endswith("in gain_of: gain = torch.pow(2.0, grades) - 1")


def test_to_divide_by_an_infinity_is_meant(tmp_path):
    model = nn.Linear(2, 1)

    def loss_of(step):
        far = torch.tensor([1.0, math.inf])
        put_out = model(torch.ones(3, 2))
        return (put_out / far).square().sum() - (put_out.square() * (step != BAD)).sum().log()

    assert origin(tmp_path, model, loss_of)["op"] == "aten.log"


class Register:
    """Keeps its readings in a dict that holds itself."""

    def __init__(self):
        self.readings = {}
        self.readings["all"] = self.readings

    def note(self, x):
        self.readings["last"] = x

    def scaled(self, x):
        return x / self.readings["last"]


def test_a_container_that_holds_itself(tmp_path):
    torch.manual_seed(0)
    model, register = nn.Linear(2, 1), Register()

    def loss(step):
        register.note(torch.tensor(float(step != BAD)))
        out = model(torch.ones(3, 2))
        return register.scaled(out).square().mean()

    seen = origin(tmp_path, model, loss)
    assert (seen["op"], "return x / self.readings" in seen["line"]) == ("aten.div", True)


class Repose(nn.Module):
    def forward(self, out, days):
        waited = days.log()
        return (out.mean() - waited).square().mean()


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([Repose(), Repose()])

    def forward(self, out, days):
        values = [part(out, days) for part in self.parts]
        return sum(values), values


class Runner:
    """Keeps the loss as an attribute, made by a module that calls others."""

    def __init__(self, model):
        self.model, self.criterion = model, Weighted()

    def run(self, run_dir):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        with watch(self.model, optimizer, run_dir=run_dir):
            for self.step in range(1, 5):
                days = torch.tensor([float(self.step != BAD), 3.0, 1.0])
                self.loss, self.values = self.criterion(self.model(torch.randn(3, 2)), days)
                optimizer.zero_grad()
                self.loss.backward()
                optimizer.step()


def test_an_operator_in_a_module_whose_loss_an_attribute_holds(tmp_path):
    torch.manual_seed(0)
    Runner(nn.Linear(2, 1)).run(tmp_path / "run")
    event, *_ = Recording.load(tmp_path / "run").events("origin")
    assert (event["origin"]["op"], event["origin"]["phase"]) == ("aten.log", "input")
    assert event["origin"]["line"].endswith("in forward: waited = days.log()")


def test_a_line_that_its_own_step_has_told_is_not_that_of_another_step(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, BAD + 3):
            loss = model(torch.ones(3, 2)).square().mean()
            if step == BAD:  # noqa: SIM108
                loss = loss / (loss.detach() * 0)
            else:
                loss = loss / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    events = Recording.load(tmp_path / "run").events("origin")
    assert all(one["origin"]["line"].endswith("loss = loss / (loss.detach() * 0)") for one in events)


def test_what_fails_in_the_search_for_a_line_is_in_the_recording(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise RecursionError("too deep")

    monkeypatch.setattr(investigation, "seen", fails)
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    origin(tmp_path, model, lambda step: model(torch.ones(3, 2)).mean() / (0.0 if step == BAD else 1.0))
    (event,) = Recording.load(tmp_path / "run").events("incident")
    assert event["statements_missing"] == "RecursionError: too deep"


class Flow:
    def loss(self, model, x):
        noise = torch.randn_like(x)
        t = torch.randint(1, 9, (len(x),)) / 8
        xt = torch.lerp(noise, x, t[:, None])
        guess = model(xt)
        velocity = (guess - xt) / (1 - t)[:, None]
        err = (velocity - (x - noise)).square().mean(-1)
        return (err * (1 - t)).mean()


def test_a_line_within_a_method_that_has_ended_is_that_of_another_step(tmp_path):
    torch.manual_seed(0)
    model, flow = nn.Linear(2, 2), Flow()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for _ in range(6):
            loss = flow.loss(model, torch.ones(2, 2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    *_, event = Recording.load(tmp_path / "run").events("origin")
    assert event["origin"]["line"].endswith("in loss: velocity = (guess - xt) / (1 - t)[:, None]")
