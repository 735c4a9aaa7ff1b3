"""The origin is the first operator that made something non-finite out of finite numbers, and nothing else."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.monitor.steps import Net, capture_of, origin_of
from torch import nn

from finitune.gym.data import batches
from finitune.gym.models import tiny
from finitune.monitor.origin.locate import _watching, locate, named_tensors
from finitune.monitor.origin.operator_watch import OperatorWatch
from finitune.monitor.replay.limits import Limits
from finitune.monitor.replay.rerun import rerun
from finitune.monitor.watch import watch
from finitune.recording import Recording

HERE = Path(__file__).name


def tanh(x):
    return torch.tanh(x)


def overflow(x):
    return x * 1e30 * 1e30


def log_of_minus_one(x):
    return torch.log(x * 0 - 1)


def divide(x):
    return x / (x - x)


def softmax_over_a_masked_row(x):
    scores = x.masked_fill(torch.ones_like(x, dtype=torch.bool), -math.inf)
    return scores.softmax(dim=-1)


def added_mask_over_a_whole_row(x):
    mask = torch.full_like(x, -math.inf)
    return (x + mask).softmax(dim=-1)


def minus_infinity_that_was_computed(x):
    return (torch.log(x * 0) + 1).softmax(dim=-1)


def overflow_to_minus_infinity(x):
    scores = (x.abs() + 1) * -1e30 * 1e30
    return scores.softmax(dim=-1)


def in_place_multiplication(x):
    y = x.clone()
    y.mul_(1e30)
    y.mul_(1e30)
    return y


def in_place_addition(x):
    y = x.abs() * 3e38
    y.add_(3e38)
    y.add_(3e38)
    return y


def zero_times_infinity_of_an_overflow(x):
    big = x * 1e30 * 1e30
    return big * 0


def in_place_on_a_masked_row(x):
    scores = x.masked_fill(torch.ones_like(x, dtype=torch.bool), -math.inf)
    return scores.sub_(scores.detach().amax(dim=-1, keepdim=True))


def not_a_number_left_from_the_start(x):
    y = torch.full_like(x, math.nan)
    y[..., 1:] = x[..., 1:]
    return y * 2


def infinite_minus_infinite(x):
    smallest = torch.full_like(x, math.inf)
    return torch.minimum(smallest, x) + (smallest - smallest)


def filled_and_overwritten(x):
    y = torch.full_like(x, math.nan)
    y.copy_(x)
    return (y * 1e30) * 1e30


def whole_numbers_over_zero(x):
    counts = (x.detach().abs() > 1e9).long()
    return x * (counts / counts)


def logarithm_of_a_negative_whole_number(x):
    return x * (torch.zeros_like(x, dtype=torch.long) - 3).log()


def whole_numbers_beyond_float16(x):
    return x * torch.full_like(x, 100_000, dtype=torch.long).half() * 0


ORIGINS = {
    overflow: "aten.mul",
    log_of_minus_one: "aten.log",
    divide: "aten.div",
    softmax_over_a_masked_row: "aten._softmax",
    added_mask_over_a_whole_row: "aten._softmax",
    minus_infinity_that_was_computed: "aten.log",
    overflow_to_minus_infinity: "aten.mul",
    in_place_multiplication: "aten.mul",
    in_place_addition: "aten.add",
    zero_times_infinity_of_an_overflow: "aten.mul",
    filled_and_overwritten: "aten.mul",
    in_place_on_a_masked_row: "aten.sub",
    not_a_number_left_from_the_start: "aten.full_like",
    infinite_minus_infinite: "aten.full_like",
    whole_numbers_over_zero: "aten.div",
    logarithm_of_a_negative_whole_number: "aten.log",
    whole_numbers_beyond_float16: "aten._to_copy",
}


@pytest.mark.parametrize("function", ORIGINS, ids=lambda f: f.__name__)
def test_forward(function):
    located, body = origin_of(function)
    origin = located.origin
    assert not located.outcome.passed
    dtype = "float16" if function is whole_numbers_beyond_float16 else "float32"
    assert (origin.op, origin.phase, origin.module, origin.dtype) == (ORIGINS[function], "forward", "body", dtype)
    file, line = origin.line.split(" in ")[0].split(":")
    assert file == HERE
    assert int(line) in body.lines


def half_overflow(x):
    return (x * 0 + 300) * 300


def test_overflow_of_float16_is_told_with_its_dtype_and_the_value_that_went_in():
    located, _ = origin_of(half_overflow, torch.float16)
    assert (located.origin.op, located.origin.dtype) == ("aten.mul", "float16")
    assert located.origin.peak == 300
    assert located.origin.values == "24 inf"


def causal(x):
    scores = x @ x.transpose(-1, -2)
    mask = torch.triu(torch.full_like(scores, -math.inf), diagonal=1)
    return (scores + mask).softmax(dim=-1) @ x


def filled(x):
    blocked = torch.zeros_like(x, dtype=torch.bool)
    blocked[..., 0] = True
    return x.masked_fill(blocked, -math.inf).softmax(dim=-1)


def where(x):
    return torch.where(x > x.amin(dim=-1, keepdim=True), x, -math.inf).softmax(dim=-1)


def maximum_over_a_mask(x):
    return torch.maximum(torch.full_like(x, -math.inf), x)


def minimum_over_infinity(x):
    smallest = torch.full_like(x, math.inf)
    return torch.minimum(smallest.clone(), x)


def not_a_number_overwritten(x):
    y = x.new_full(x.shape, math.nan)
    y[..., 1:] = x[..., 1:]
    y[..., :1].copy_(x[..., :1])
    return y


def smallest_float(x):
    mask = torch.full_like(x, torch.finfo(x.dtype).min)
    mask[..., 0] = 0
    return (x + mask).softmax(dim=-1)


DELIBERATE = [
    causal, filled, where, maximum_over_a_mask, minimum_over_infinity, not_a_number_overwritten, smallest_float,
]  # fmt: skip


@pytest.mark.parametrize("function", DELIBERATE, ids=lambda f: f.__name__)
def test_a_deliberate_infinity_is_no_origin(function):
    located, _ = origin_of(function)
    assert located.outcome.passed
    assert located.origin is None


@pytest.mark.parametrize("function", DELIBERATE, ids=lambda f: f.__name__)
def test_a_fault_behind_a_deliberate_infinity_is_found(function):
    located, _ = origin_of(lambda x: function(x) * 1e30 * 1e30)
    assert located.origin.op == "aten.mul"
    assert located.origin.phase == "forward"


def test_a_loss_of_minus_infinity_that_a_masked_row_makes():
    model, x = Net(tanh), torch.randn(2, 5)
    none_left = torch.tensor([[True] * 3, [False] * 3])
    origin = locate(capture_of(model, lambda _: model(x).masked_fill(none_left, -math.inf).logsumexp(1).mean())).origin
    assert (origin.op, origin.phase, origin.rows, origin.values) == ("aten.logsumexp", "forward", [0], "1 -inf")


def a_constant(x):
    return torch.where(x > x.amin(), x, torch.tensor(math.nan))


def an_infinite_constant_that_is_a_bound(x):
    return torch.minimum(x, torch.tensor(math.inf)) * 1e30 * 1e30


@pytest.mark.parametrize("function", [a_constant, an_infinite_constant_that_is_a_bound], ids=lambda f: f.__name__)
def test_a_constant_in_the_forward(function):
    located, body = origin_of(function)
    assert (located.origin.phase, located.origin.module) == ("forward", "body")
    assert located.origin.op == ("aten.lift_fresh" if function is a_constant else "aten.mul")
    assert int(located.origin.line.split(" in ")[0].split(":")[1]) in body.lines


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_parameter(value):
    model = Net(tanh)
    with torch.no_grad():
        model.after.weight[1, 2] = value
    origin = locate(capture_of(model, lambda _: model(torch.randn(2, 5)).mean())).origin
    assert (origin.op, origin.phase, origin.module, origin.tensor) == (
        "parameter",
        "parameter",
        "after",
        "after.weight",
    )
    assert origin.rows == [1]


def test_a_buffer():
    model = Net(tanh)
    model.body.register_buffer("table", torch.tensor([1.0, math.nan]))
    model.body.function = lambda x: x * model.body.table[1]
    origin = locate(capture_of(model, lambda _: model(torch.randn(2, 5)).mean())).origin
    assert (origin.phase, origin.tensor, origin.module) == ("parameter", "body.table", "body")


def test_a_buffer_of_minus_infinity_is_a_mask():
    model = Net(lambda x: x)
    model.body.register_buffer("mask", torch.tensor([-math.inf, 0, 0, 0]))
    model.body.function = lambda x: (x + model.body.mask).softmax(-1) * 1e30 * 1e30
    assert locate(capture_of(model, lambda _: model(torch.randn(2, 5)).mean())).origin.op == "aten.mul"


@pytest.mark.parametrize(("written", "found"), [(0, "aten.mul"), (1, "aten.mul"), (3, "parameter")])
def test_an_infinity_in_a_buffer_that_no_step_writes_is_meant(written, found):
    """As the upper bound of a constraint that has none; statistics that have overflowed were written in each step."""
    model = Net(lambda x: x)
    model.body.register_buffer("bound", torch.tensor(math.inf))
    for _ in range(written):
        model.body.bound.copy_(torch.tensor(math.inf))
    model.body.function = lambda x: x.minimum(model.body.bound) * 1e30 * 1e30
    assert locate(capture_of(model, lambda _: model(torch.randn(2, 5)).mean())).origin.op == found


class Scaled(nn.Module):
    """Logarithms of rates, beside those of sizes that it is given."""

    def __init__(self, join):
        super().__init__()
        self.rates, self.join = nn.Linear(5, 4), join

    def forward(self, x, given):
        return self.join(self.rates(x), given)


def origin_where_given(join, given, loss):
    torch.manual_seed(0)
    model = Scaled(join)
    capture = capture_of(model, lambda _: loss(model(torch.randn(2, 5), given)))
    return locate(capture).origin


def test_minus_infinity_that_is_given_and_times_zero_is_no_number_is_the_input():
    counts = torch.tensor([0.0, 1.0, 2.0, 0.0])
    given = torch.tensor([[0.0], [0.0]]).log()
    origin = origin_where_given(torch.add, given, lambda logarithms: -(counts * logarithms).mean())
    assert (origin.phase, origin.tensor, origin.values) == ("input", "input 1", "2 -inf")


def test_a_mask_that_is_multiplied_instead_of_added_is_the_product():
    mask = torch.tensor([0.0, -math.inf, -math.inf, 0.0])
    origin = origin_where_given(torch.mul, mask, lambda scores: scores.softmax(-1).square().mean())
    assert (origin.phase, origin.op) == ("forward", "aten.mul")


@pytest.mark.parametrize("derived_by", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_input(value, derived_by):
    """`derived_by`: its gradient goes on to another half of the network, as in a pipeline."""
    model = Net(tanh)
    x = torch.randn(2, 5)
    x[1, 3] = value
    x.requires_grad_(derived_by)
    origin = locate(capture_of(model, lambda _: model(x).mean())).origin
    assert (origin.op, origin.phase, origin.module) == ("input", "input", None)
    assert origin.rows == [1]


def test_an_input_given_by_name_in_a_nested_batch():
    class Named(Net):
        def forward(self, batch=None):
            return super().forward(batch["pixels"])

    model = Named(tanh)
    origin = locate(capture_of(model, lambda _: model(batch={"pixels": torch.full((2, 5), math.nan)}).mean())).origin
    assert origin.phase == "input"
    assert "pixels" in origin.tensor


def test_a_sound_step_has_no_origin_and_the_layers_it_went_through():
    located, _ = origin_of(tanh)
    assert located.origin is None
    assert located.outcome.passed
    assert [layer.module for layer in located.layers] == ["before", "body", "after", ""]
    assert all(layer.nonfinite == 0 and layer.peak > 0 for layer in located.layers)


def test_the_second_of_two_micro_steps():
    model = Net(tanh)
    xs = [torch.randn(2, 5), torch.randn(2, 5)]
    setting = capture_of(model, lambda i: model(xs[i]).mean(), micro_steps=2)
    model.body.function = lambda x: x * 1e30 * 1e30 if calls.append(1) or len(calls) == 2 else x
    calls = []
    assert locate(setting).origin.op == "aten.mul"


def test_a_loss_outside_of_the_model_has_no_module():
    model = Net(tanh)
    x, ignored = torch.randn(2, 5), torch.full((2,), -100)
    origin = locate(capture_of(model, lambda _: F.cross_entropy(model(x), ignored))).origin
    assert (origin.op, origin.phase) == ("aten.nll_loss_forward", "forward")
    assert not origin.module
    assert origin.line is None, "no line of finitune's own"


def test_minus_infinity_of_the_model_is_followed_through_a_target_that_no_node_keeps():
    model, target = Net(lambda x: torch.log(torch.relu(x) * 0)), torch.randn(2, 4)
    model.after = nn.Identity()
    origin = locate(capture_of(model, lambda _: (model(torch.randn(2, 5)) - target).abs().mean())).origin
    assert (origin.op, origin.module) == ("aten.log", "body")


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_real_model_with_left_padding_is_sound_under_its_own_masks(family):
    model = tiny(family, hidden=32, vocabulary=128)
    batch = batches(1, length=12, vocabulary=128)[0]
    batch["attention_mask"][0, :5] = 0
    batch["labels"][0, :5] = -100
    located = locate(capture_of(model, lambda _: model(**batch).loss))
    assert located.outcome.passed
    assert located.origin is None


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_real_model(attention, checkpointing):
    model = tiny("llama", hidden=32, vocabulary=128, attn_implementation=attention)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    batch = batches(1, length=12, vocabulary=128)[0]
    with torch.no_grad():
        model.get_parameter("model.layers.1.mlp.down_proj.weight").mul_(1e38)
        model.get_parameter("model.layers.1.mlp.up_proj.weight").mul_(1e6)
    origin = locate(capture_of(model, lambda _: model(**batch).loss)).origin
    assert (origin.module, origin.op, origin.phase) == ("model.layers.1.mlp.down_proj", "aten.mm", "forward")


class Barred(nn.Module):
    """Puts out -inf on purpose, as a head that allows some classes only."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 4)

    def forward(self, x):
        return self.head(x).masked_fill(torch.tensor([False, True, False, False]), -math.inf)


def test_what_measures_the_output_of_a_module_is_no_operator_of_the_step():
    """The magnitude of a deliberate -inf is +inf."""
    torch.manual_seed(0)
    model = Barred()
    labels = torch.zeros(3, dtype=torch.long)
    setting = capture_of(model, lambda _: nn.functional.cross_entropy(model(torch.randn(3, 5)), labels))
    watch = OperatorWatch({}, list, Limits())
    rerun(setting, _watching([("", model)], watch))
    assert watch.found() is None


def test_running_statistics_of_a_batch_norm_that_trains_are_no_origin():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model[1].running_var.fill_(math.inf)
    names = lambda: {name for name, _ in named_tensors(model)}  # noqa: E731
    assert not {"1.running_var", "1.running_mean"} & names()
    model.eval()
    assert {"1.running_var", "1.running_mean"} <= names()


class Halves(nn.Module):
    """Its outputs are those of one node."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 8)

    def forward(self, x):
        return self.body(x).chunk(2, -1)


def test_outputs_of_one_node_are_told_apart(tmp_path):
    torch.manual_seed(0)
    model = Halves()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, run_dir=tmp_path):
        for _ in range(3):
            optimizer.zero_grad()
            first, second = model(torch.randn(2, 3))
            (first.square().mean() - torch.sigmoid(second).log().mean()).backward()
            optimizer.step()
            with torch.no_grad():
                model.body.bias[4:] -= 200.0  # the sigmoid of the second half is 0 from here on
    event = Recording.load(tmp_path).events("origin")[0]
    assert (event["step"], event["origin"]["op"], event["origin"]["phase"]) == (2, "aten.log", "forward")
    assert event["repeats"]
    assert event["bit_for_bit"]


@pytest.mark.parametrize("operator", ["mean", "var", "std"])
def test_a_mean_of_no_element_is_said(operator):
    def of_nothing(out):
        return getattr(out[out > math.inf], operator)() + out

    located, _ = origin_of(of_nothing)
    origin = located.origin
    assert origin.op == f"aten.{operator}"
    assert origin.divisor == "no element goes in"
