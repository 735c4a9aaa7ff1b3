"""The loss of a loop's own code, read off the graph: rebuilt from the model's outputs it has the same value."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from finitune.monitor.capture.step import Call, Capture, MicroStep
from finitune.monitor.loss_graph.loss_operators import OPERATORS
from finitune.monitor.loss_graph.objective import NotReadable, number_of, read, terms
from finitune.monitor.replay.fewer_rows import without
from finitune.monitor.watch import watch
from finitune.recording import Recording

ROWS, LENGTH, VOCABULARY = 3, 5, 7


def logits(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(4, VOCABULARY)(torch.randn(ROWS, LENGTH, 4))


def labels():
    out = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    out[0, :2] = -100
    return out


def mask():
    return (labels() != -100).float()


def shifted(x, **more):
    return F.cross_entropy(x[:, :-1].reshape(-1, VOCABULARY), labels()[:, 1:].reshape(-1), **more)


def hand_written_masked_mean(x):
    token_losses = -torch.log_softmax(x, dim=-1).gather(-1, labels().clamp_min(0).unsqueeze(-1)).squeeze(-1)
    return (token_losses * mask()).sum() / mask().sum()


def unreduced_masked_mean(x):
    each = F.cross_entropy(x.transpose(1, 2), labels().clamp_min(0), reduction="none")
    return (each * mask()).sum() / mask().sum().clamp_min(1)


def summed_and_divided(x):
    return shifted(x, reduction="sum") / torch.tensor(9.0)


OBJECTIVES = {
    "mean": lambda x: F.cross_entropy(x.view(-1, VOCABULARY), labels().view(-1)),
    "shifted": shifted,
    "shifted sum": lambda x: shifted(x, reduction="sum"),
    "shifted weighted": lambda x: shifted(x, weight=torch.arange(VOCABULARY) + 1.0),
    "shifted ignore index": lambda x: shifted(x, ignore_index=3) if (labels() >= 0).all() else shifted(x),
    "contiguous": lambda x: F.cross_entropy(
        x[..., :-1, :].contiguous().view(-1, VOCABULARY), labels()[..., 1:].contiguous().view(-1)
    ),
    "classes second": lambda x: F.cross_entropy(x.transpose(1, 2), labels()),
    "last position": lambda x: F.cross_entropy(x[:, -1], labels()[:, -1]),
    "accumulated and scaled": lambda x: shifted(x) / 4 * 1024.0,
    "scaled by a tensor": lambda x: shifted(x) * torch.tensor(256.0),
    "float": lambda x: shifted(x.float()),
    "double": lambda x: shifted(x.double()),
    "hand-written masked mean": hand_written_masked_mean,
    "unreduced masked mean": unreduced_masked_mean,
    "sum over count": summed_and_divided,
    "mse": lambda x: F.mse_loss(x, torch.zeros_like(x)),
    "mse sum": lambda x: F.mse_loss(x, torch.ones_like(x), reduction="sum"),
    "two terms": lambda x: shifted(x) + 0.1 * x.mean(),
    "difference": lambda x: shifted(x) - 0.5 * x.sum(),
    "negative mean": lambda x: -x.mean(),
    "mean over a dimension": lambda x: x.mean(dim=-1).mean(dim=(0, 1)),
    "sum, dimension kept": lambda x: x.sum(dim=1, keepdim=True).mean(),
    "nll": lambda x: F.nll_loss(torch.log_softmax(x.view(-1, VOCABULARY), -1), labels().view(-1)),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_rebuilt_with_the_same_value_and_the_same_gradient(name):
    x = logits()
    loss = OBJECTIVES[name](x)
    number = number_of(x)
    objective = read(loss, {number})
    assert objective.uses == {number}
    again = x.detach().requires_grad_()
    rebuilt = objective.rebuild({number: again})
    assert rebuilt.dtype == loss.dtype
    assert torch.equal(rebuilt, loss)
    (gradient,) = torch.autograd.grad(rebuilt, again)
    (own,) = torch.autograd.grad(loss, x)
    assert torch.equal(gradient, own)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_follows_other_outputs(name):
    """It is the function that was read, not its value."""
    number = number_of(x := logits())
    objective = read(OBJECTIVES[name](x), {number})
    other = logits(seed=9).detach()
    assert torch.equal(objective.rebuild({number: other}), OBJECTIVES[name](other))


def test_autocast_outputs_cast_by_the_loop_itself():
    with torch.autocast("cpu", torch.bfloat16):
        x = logits()
        loss = shifted(x.float())
    assert x.dtype == torch.bfloat16
    number = number_of(x)
    assert torch.equal(read(loss, {number}).rebuild({number: x.detach()}), loss)


def test_a_scale_is_kept_as_it_was_when_it_is_changed_later():
    scale = torch.tensor(1024.0)
    number = number_of(x := logits())
    loss = shifted(x) * scale
    objective = read(loss, {number})
    value = loss.item()
    scale.fill_(2.0)
    assert objective.rebuild({number: x.detach()}).item() == value


def test_a_float16_loss_that_its_scale_takes_out_of_range_is_so_again():
    """A Python number is no float64 tensor: the product stays in float16."""
    number = number_of(x := logits())
    loss = shifted(x).half() * 65536.0
    assert loss.isinf()
    rebuilt = read(loss, {number}).rebuild({number: x.detach()})
    assert rebuilt.dtype == torch.float16
    assert rebuilt.isinf()


def test_two_outputs():
    a, b = logits(1), logits(2)
    numbers = number_of(a), number_of(b)
    objective = read(shifted(a) + shifted(b) / 2, set(numbers))
    assert objective.uses == set(numbers)
    rebuilt = objective.rebuild(dict(zip(numbers, (a.detach(), b.detach()), strict=True)))
    assert torch.equal(rebuilt, shifted(a) + shifted(b) / 2)


UNREADABLE = {
    "KthvalueBackward0": lambda x: x.tanh().kthvalue(2, dim=-1).values.sum(),
    "FmodBackward0": lambda x: x.fmod(0.3).sum(),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unknown_operator_is_named(name):
    number = number_of(x := logits())
    with pytest.raises(NotReadable, match=name):
        read(UNREADABLE[name](x), {number})


def test_a_loss_of_trained_tensors_alone():
    loss = logits().mean()
    objective = read(loss, {-1})
    assert objective.weights
    assert not objective.uses
    assert torch.equal(objective.rebuild({}), loss)


def test_a_loss_without_a_graph():
    with pytest.raises(NotReadable, match="no graph"):
        read(torch.zeros(()), {-1})


@pytest.mark.parametrize("total", [0, torch.tensor(3.0)], ids=["zero", "three"])
def test_a_constant_term_is_not_kept_but_known_to_be_there(total):
    """Ludwig begins its loss as `total = 0`; gradients are the same whatever the constant was."""
    number = number_of(x := logits())
    objective = read(total + shifted(x), {number})
    assert objective.constant
    assert torch.equal(objective.rebuild({number: x}), shifted(x))
    assert not read(shifted(x), {number}).constant


def test_a_long_chain_ends():
    number = number_of(x := logits())
    y = x
    for _ in range(5000):
        y = -y
    with pytest.raises(NotReadable, match="more than"):
        read(y.sum(), {number})


# In a run


def train(loss, tmp_path, bad=3, steps=5):
    """The weights after training on `loss(out, factor)`, where the factor is NaN at the bad step; and the recording."""
    torch.manual_seed(0)
    model = nn.Linear(4, VOCABULARY)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(2)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, steps + 1):
            x = torch.randn(ROWS, LENGTH, 4, generator=generator)
            loss(model(x), math.nan if step == bad else 1.0).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model, Recording.load(tmp_path / "run")


@pytest.mark.parametrize("name", UNREADABLE)
def test_training_goes_on_unharmed_where_the_objective_cannot_be_read(name, tmp_path):
    model, recording = train(lambda out, factor: UNREADABLE[name](out) * factor, tmp_path)
    assert all(p.isfinite().all() for p in model.parameters())
    (origin,) = recording.events("origin")
    assert name in origin["why_not"]
    assert origin["repeats"] is None
    assert recording.signals["skipped"].values.tolist() == [0, 0, 1, 0, 0]
    assert not recording.events("broken")


def test_a_masked_mean_over_nothing_is_located_in_the_loops_own_code(tmp_path):
    def masked_mean(out, factor):
        weights = mask() * (0.0 if math.isnan(factor) else 1.0)
        each = F.cross_entropy(out.transpose(1, 2), labels().clamp_min(0), reduction="none")
        return (each * weights).sum() / weights.sum()

    model, recording = train(masked_mean, tmp_path)
    assert all(p.isfinite().all() for p in model.parameters())
    origin = recording.events("origin")[-1]
    assert origin["repeats"]
    assert origin["bit_for_bit"]
    assert "weights.sum()" in origin["origin"]["line"], "as the next step shows"
    assert (origin["origin"]["op"], origin["origin"]["phase"]) == ("aten.div", "forward")
    assert not origin["origin"]["module"], "not in the model"


def test_a_nan_factor_put_in_from_outside_is_not_said_to_be_sound_when_run_again(tmp_path, capsys):
    train(lambda out, factor: shifted(out) * torch.tensor(factor), tmp_path)
    origin, with_line = Recording.load(tmp_path / "run").events("origin")
    assert origin["repeats"]
    assert (origin["origin"]["phase"], origin["origin"]["op"]) == ("input", "input")
    assert "shifted(out) * torch.tensor(factor)" in with_line["origin"]["line"]
    assert "was finite when run again" not in capsys.readouterr().err


def test_targets_of_a_loss_outside_the_model_are_known() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True) * 1
    target = torch.tensor([[-100, 1, 2], [3, -100, 0]])
    loss = F.cross_entropy(logits.view(-1, 5), target.view(-1))
    number = number_of(logits)
    assert number is not None
    assert [t.tolist() for t in read(loss, {number}).targets] == [target.view(-1).tolist()]


@pytest.mark.parametrize("power", [2, 0.5])
def test_powers_logarithms_and_log_sigmoids_are_read(power: float) -> None:
    x = (torch.rand(4, requires_grad=True) + 0.5) * 1
    number = number_of(x)
    assert number is not None
    loss = (F.logsigmoid(x.exp()).sum().neg() + x.pow(power).mean().log()) * 2
    again = read(loss, {number}).rebuild({number: x})
    assert torch.equal(again, loss)


def test_a_constant_that_is_nan_is_not_called_a_fault_that_does_not_repeat(tmp_path):
    _, recording = train(lambda out, factor: torch.tensor(factor - 1) + out.square().mean(), tmp_path)
    (origin,) = recording.events("origin")
    assert origin["repeats"] is None
    assert "term of the loss without a graph" in origin["why_not"]


TARGET = torch.rand(ROWS, LENGTH, VOCABULARY, generator=torch.Generator().manual_seed(2)) + 0.5
WITH_A_CONSTANT = {
    "squared error by hand": lambda x: ((x - TARGET) ** 2).mean(),
    "the target first": lambda x: (TARGET - x).abs().sum(),
    "broadcast": lambda x: ((x[..., :1] - TARGET) ** 2).mean(),
    "ratio": lambda x: (torch.exp(x - TARGET) * TARGET).mean(),
    "one minus": lambda x: -torch.log(1 - torch.sigmoid(x)).mean(),
    "reshaped": lambda x: (-(x - TARGET).view(-1)).exp().sum(),
    "chosen": lambda x: torch.where(TARGET > 1, x.abs(), TARGET).log().sum(),
    "masked afterwards": lambda x: ((x - TARGET) * (TARGET > 1)).pow(2).mean(),
    "weighted afterwards": lambda x: ((x - TARGET) * TARGET).pow(2).mean(),
}


@pytest.mark.parametrize("name", WITH_A_CONSTANT)
def test_an_operand_that_no_node_keeps_is_found_from_the_result(name):
    loss = WITH_A_CONSTANT[name]
    x = logits()
    read_of = read(loss(x), {number_of(x)})
    assert read_of.recovers
    for times in (1.0, 1.5):  # as the step was, and as an experiment changes it
        again = logits() * times
        rebuilt, expected = read_of.rebuild({number_of(x): again}), loss(again)
        assert torch.allclose(rebuilt, expected, rtol=1e-4)
        gradients = [torch.autograd.grad(one, again, retain_graph=True)[0] for one in (rebuilt, expected)]
        assert torch.allclose(*gradients, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_it_is_not_known_where_the_output_was_not_finite(value):
    x = logits().detach().index_fill(1, torch.tensor([2]), value).requires_grad_()
    y = x.clone()
    read_of = read(WITH_A_CONSTANT["squared error by hand"](y), {number_of(y)})
    assert not read_of.rebuild({number_of(y): x.clone()}).isfinite(), "as the step was"
    with pytest.raises(NotReadable, match="not finite"):
        read_of.rebuild({number_of(y): logits()})


@pytest.mark.parametrize("large", [math.nan, math.inf, -math.inf, 1e12])
def test_it_is_known_where_the_code_that_runs_spells_it(large):
    """Beside 1e12 nothing is left of a target of about 1 in the difference."""
    target, beside = TARGET[..., 0], TARGET[..., 1]
    large_output = torch.full((ROWS, LENGTH), large, requires_grad=True)
    y = large_output * 1
    read_of = read(((y - target) ** 2).mean() * (beside - 0.5).mean(), {number_of(y)})
    read_of.rebuild({number_of(y): large_output * 1})
    again = torch.ones(ROWS, LENGTH)
    rebuilt = read_of.rebuild({number_of(y): again})
    assert torch.allclose(rebuilt, ((again - target) ** 2).mean() * (beside - 0.5).mean())


def test_a_model_that_puts_out_something_else_is_not_blamed_on_the_loop():
    """NaN of its own random numbers, say; in a rebuild it is finite."""
    x = logits().detach().fill_(math.nan).requires_grad_()
    y = x * 1
    read_of = read((y - 1).clamp(min=0).sum(), {number_of(y)})
    with pytest.raises(NotReadable, match="not what it was in the step"):
        read_of.rebuild({number_of(y): logits()})


def test_a_constant_beside_nan_alone_may_be_any():
    x = logits().detach().fill_(math.nan).requires_grad_()
    y = x * 1
    read_of = read(torch.relu(1 - y).mean(), {number_of(y)})
    assert read_of.rebuild({number_of(y): x * 1}).isnan()
    with pytest.raises(NotReadable):
        read_of.rebuild({number_of(y): logits()})


COMPARED = [F.mse_loss, F.smooth_l1_loss, F.huber_loss, lambda a, b: F.binary_cross_entropy(a.sigmoid(), b.sigmoid())]


@pytest.mark.parametrize("compared", COMPARED)
@pytest.mark.parametrize("order", ["two outputs", "the target first", "the target last"])
def test_what_is_compared_may_both_come_from_the_model(compared, order):
    x = logits()
    a, b = x * 1, x.exp()
    with_graph = {"two outputs": (a, b), "the target first": (TARGET, b), "the target last": (a, TARGET)}[order]
    loss = compared(*with_graph)
    numbers = {number_of(a): a, number_of(b): b}
    assert torch.equal(read(loss, set(numbers)).rebuild(numbers), loss)


def test_it_is_known_without_a_rebuild_where_the_code_holds_both_sides():
    target = TARGET[..., 0]
    y = torch.ones(ROWS, LENGTH, requires_grad=True) * 3
    read_of = read(((y - target) ** 2).mean(), {number_of(y)})
    assert not read_of.knows_constants
    read_of.look_up_constants()
    assert read_of.knows_constants
    again = y + 1
    assert torch.equal(read_of.rebuild({number_of(y): again}), ((again - target) ** 2).mean())


def test_nor_is_it_looked_up_where_several_may_be_it():
    first, second, made = TARGET[..., 0], TARGET[..., 1], {}

    def call():
        made["y"] = torch.ones(ROWS, LENGTH, requires_grad=True) * 3
        return made["y"]

    other = (call() + second).mean()
    read_of = read(((call() - first) ** 2).mean() + 0 * other.detach(), {number_of(made["y"])})
    read_of.look_up_constants()
    assert not read_of.knows_constants


def test_of_two_that_give_the_same_none_is_taken():
    large_output = torch.full((ROWS, LENGTH), 1e12, requires_grad=True)
    y = large_output * 1
    read_of = read(((y - TARGET[..., 0]) ** 2).mean() + 0 * (y + TARGET[..., 1]).mean(), {number_of(y)})
    read_of.rebuild({number_of(y): large_output * 1})
    assert all(not constant.any() for _, constant in read_of.first.values()), "what rounding leaves"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_operand_that_is_not_finite_itself_stays_so(value):
    x, bad = logits(), TARGET.clone()
    bad[0, 0, 0] = value
    read_of = read(((x - bad) ** 2).mean(), {number_of(x)})
    assert not read_of.rebuild({number_of(x): logits()}).isfinite()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bad_factor_of_a_matrix_product_is_the_operand_that_is_bad(value):
    """As of a first layer, where the loop calls no module as a whole."""
    batch, weight = torch.ones(3, 4), torch.ones(2, 4, requires_grad=True)
    batch[1, 2] = value
    found = read((F.linear(batch, weight, torch.zeros(2, requires_grad=True)) ** 2).mean(), set()).bad_operand()
    assert found is not None
    assert found[0] == "operand of Addmm"
    assert found[1].equal(batch) or math.isnan(value)


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("node", "name", "sign"), [("AddBackward0", "add", 1), ("SubBackward0", "sub", -1)])
def test_a_sum_with_a_constant_that_is_not_known_goes_by_its_own_operator(node, name, sign):
    with Seen() as seen:
        value = OPERATORS[node][1]({"alpha": 2}, None, torch.tensor([1.0, math.inf]))
    assert seen.names[-1] == name
    assert value.tolist() == [sign * 2.0, sign * math.inf]


def test_of_a_weighted_mean_the_weights_are_bad_and_not_their_sum():
    x, weight = logits(), torch.ones_like(TARGET)
    weight[0, 0, 0] = math.nan
    loss = (((x - TARGET) ** 2) * weight).sum() / weight.sum()
    found = read(loss, {number_of(x)}).bad_operand()
    assert found is not None
    assert (found[0], found[1].shape) == ("operand of Mul", weight.shape)


class Parts(nn.Module):
    """A loop that never calls it as a whole, and computes something between its parts."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.head = nn.Linear(4, 6), nn.Linear(6, 1)


def test_modules_that_are_fed_what_others_put_out_are_run_again_in_turn(tmp_path):
    model = Parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(3)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 9):
            gate = torch.ones(5, 1)
            gate[2] = float(step != 6)
            h = torch.tanh(model.encoder(torch.randn(5, 4, generator=generator))) * gate
            length = h.pow(2).sum(-1).sqrt()  # has no derivative at 0
            (model.head(h).pow(2).mean() + length.mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    origin = Recording.load(tmp_path / "run").events("origin")[-1]
    assert (origin["step"], origin["repeats"], origin["bit_for_bit"]) == (6, True, True)
    assert origin["origin"]["op"] == "aten.div"
    assert origin["origin"]["phase"] == "backward"
    assert "length = h.pow(2).sum(-1).sqrt()" in origin["origin"]["line"]


def test_what_went_in_is_said_to_be_unknown_where_it_cannot_be_computed_again(tmp_path):
    model = Parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 6):
            h = model.encoder(torch.ones(5, 4)).sigmoid().fmod(0.3)
            (model.head(h).mean() * (math.nan if step == 4 else 1.0)).backward()
            optimizer.step()
            optimizer.zero_grad()
    origin = Recording.load(tmp_path / "run").events("origin")[0]
    assert "what a module was called with" in origin["why_not"] or origin["repeats"] is None


def test_a_step_with_samples_left_out_finds_its_own_constants_and_keeps_weights_whole():
    weight = nn.Parameter(torch.ones(4, 3))
    x = torch.randn(4, 3, requires_grad=True) * 1
    objective = read(((x - 2.0) ** 2).mean() + weight.pow(2).sum(), {number_of(x)})
    micro = MicroStep(calls=[], root=torch.tensor(0.0), objective=objective)
    micro.calls = [Call.of(nn.Identity(), (torch.zeros(4, 3),), {}, [])]
    cut = without(Capture(micro_steps=[micro]), {1}).micro_steps[0].objective
    assert cut.first is not objective.first
    (own,) = [term.kept["variable"] for term in terms(cut.whole) if "variable" in term.kept]
    assert own is weight


def test_what_one_operator_has_kept_serves_another_that_takes_the_same():
    """A focal loss: `1 - pt` lies beside `pt.log()`, whose node keeps what both are made of."""
    x = torch.randn(6, requires_grad=True) * 1
    number = number_of(x)
    assert number is not None

    def focal():
        p = torch.sigmoid(x)
        pt = torch.where(torch.tensor([True, False, True, True, False, False]), p, 1 - p)
        return (-((1 - pt) ** 0.5) * pt.log()).mean()

    loss = focal()
    assert torch.allclose(read(loss, {number}).rebuild({number: x}), loss)
