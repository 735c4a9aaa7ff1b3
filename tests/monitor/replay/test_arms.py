"""Each arm changes the one thing it says, and puts the model back bit for bit, also when the model raises."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from tests.monitor.steps import capture_of
from torch import nn

from finitune.monitor.replay.arms import arm, arm_names, input_embedding
from finitune.monitor.replay.rerun import rerun

IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


class Log(list):
    """Of a class of its own, so that what a replay adds to it is not taken back."""


class Tiny(nn.Module):
    """Tells what it was called with; `inner` overflows float16 where `size` is large."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(16, 8)
        self.norm = nn.BatchNorm1d(4)
        self.inner = nn.Linear(8, 8)
        self.other = nn.Linear(8, 8)
        self.head = nn.Linear(8, 16)
        self.seen = Log()
        self.fails = False

    def forward(self, input_ids, labels=None):
        h = self.norm(self.embed(input_ids))
        h = self.other(torch.tanh(self.inner(h)))
        self.seen.append({
            "ids": input_ids.clone(), "labels": None if labels is None else labels.clone(), "hidden": h.dtype,
            "weights": {p.dtype for p in self.parameters()}, "row": self.embed.weight[3].detach().clone(),
            "inner": self.inner.weight.detach().clone(),
        })  # fmt: skip
        if self.fails:
            raise ArithmeticError("the model raises")
        logits = self.head(h)
        return F.cross_entropy(logits.flatten(0, 1), (input_ids if labels is None else labels).view(-1))


ARMS = [
    "again", "float32", "bfloat16", "loss-scale-1", "loss-scale-half", "module-float32=inner",
    "replace-embedding-rows=3,5", "repair-weight=inner.weight", "label-every-token", "shuffle-tokens",
    "update-times=0.01", "optimizer-float32", "fresh-moments", "fresh-first-moment", "row-by-row", "reverse-rows",
    "leave-rows-out=1", "attention-math", "attention-copies", "zero-empty-rows", "zero-other-rows",
]  # fmt: skip


def setting_of(model, **more):
    labels = IDS.clone()
    labels[0] = -100
    return capture_of(model, lambda _: model(input_ids=IDS, labels=labels), **more)


def run_arm(spelling, setting):
    function, arguments = arm(spelling)
    setting = dataclasses.replace(setting)  # as every arm gets one of its own
    return rerun(setting, function(setting, *arguments))


def photograph(model, optimizer):
    return {
        "weights": {
            n: (p.data_ptr(), p.dtype, p.requires_grad, p.detach().clone()) for n, p in model.named_parameters()
        },
        "gradients": [p.grad for p in model.parameters()],
        "buffers": {n: b.clone() for n, b in model.named_buffers()},
        "attributes": [sorted(vars(m)) for m in model.modules()],
        "optimizer": copy.deepcopy(optimizer.state_dict()),
        "random": torch.get_rng_state(),
    }


def assert_same(a, b):
    assert str(a) == str(b)
    for name, (*_, values) in a["weights"].items():
        assert torch.equal(values, b["weights"][name][3]), name
    assert all(torch.equal(values, b["buffers"][name]) for name, values in a["buffers"].items())
    assert torch.equal(a["random"], b["random"])


def test_every_arm_is_tested_here():
    # test_padding, and those of heal
    elsewhere = ["pad-other-side", "last-steps", "last-steps-clipped", "rounded-by-chance", "rounded-to-nearest"]
    assert sorted([*elsewhere, *(spelling.partition("=")[0] for spelling in ARMS)]) == arm_names()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("fails", [False, True], ids=["runs", "raises"])
@pytest.mark.parametrize("spelling", ARMS)
def test_puts_everything_back(spelling, fails, dtype):
    model = Tiny().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for p in model.parameters():
        optimizer.state[p]["momentum_buffer"] = torch.full_like(p, 0.25)
    setting = setting_of(model, optimizer=optimizer)
    before, calls = photograph(model, optimizer), len(model.seen)
    model.fails = fails
    with pytest.raises(ArithmeticError) if fails else contextlib.nullcontext():
        run_arm(spelling, setting)
    assert len(model.seen) > calls, "it ran"
    assert_same(before, photograph(model, optimizer))


def last_seen(spelling, model=None, **more):
    model = model or Tiny()
    setting = setting_of(model, **more)
    return run_arm(spelling, setting), model.seen[-1], setting


def test_again_changes_nothing():
    model = Tiny()
    setting = setting_of(model)
    outcome = run_arm("again", setting)
    first, last = model.seen
    assert torch.equal(first["ids"], last["ids"])
    assert torch.equal(first["labels"], last["labels"])
    assert outcome.losses == (float(setting.capture.micro_steps[0].root),)
    assert outcome.passed


@pytest.mark.parametrize("held", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_float32_holds_and_computes_in_float32(held):
    _, seen, _ = last_seen("float32", Tiny().to(held))
    assert seen["weights"] == {torch.float32}
    assert seen["hidden"] == torch.float32


def test_float32_switches_autocast_off():
    model = Tiny()
    setting = setting_of(model, autocast=torch.float16)
    assert model.seen[-1]["hidden"] == torch.float16
    run_arm("float32", setting)
    assert model.seen[-1]["hidden"] == torch.float32


def test_bfloat16_takes_the_place_of_float16_and_only_of_that():
    _, seen, _ = last_seen("bfloat16", Tiny().to(torch.float16))
    assert seen["weights"] == {torch.bfloat16}
    model = Tiny()
    setting = setting_of(model, autocast=torch.float16)
    run_arm("bfloat16", setting)
    assert model.seen[-1]["weights"] == {torch.float32}
    assert model.seen[-1]["hidden"] == torch.bfloat16


def test_loss_scale_1_takes_the_scale_away():
    model = Tiny()
    setting = setting_of(model, scale=1024.0)
    scaled, plain = run_arm("again", setting), run_arm("loss-scale-1", setting)
    assert scaled.losses[0] == plain.losses[0] * 1024
    assert torch.allclose(scaled.norms, plain.norms * 1024)


@pytest.mark.parametrize("autocast", [None, torch.float16], ids=str)
def test_module_float32_is_about_one_module(autocast):
    """inner's product leaves float16's range; in float32 it is squashed by tanh before anything else sees it."""
    model = Tiny()
    with torch.no_grad():
        model.inner.weight.mul_(1e6)
    if autocast is None:
        model.half()
        model.inner.weight.data.clamp_(-6e4, 6e4)
    dtypes = []
    model.inner.register_forward_hook(lambda m, a, out: dtypes.append((a[0].dtype, m.weight.dtype, out.dtype)))
    setting = setting_of(model, autocast=autocast)
    run_arm("module-float32=inner", setting)
    assert dtypes[-1][1:] == (torch.float32, torch.float16), "weights in float32, output back in float16"
    with pytest.raises(AttributeError):
        run_arm("module-float32=no.such.module", setting)


def test_module_float32_cures_what_overflows_inside_of_it():
    class Square(nn.Module):
        def forward(self, x):
            return (x * 300) * 300 / 90000

    model = nn.Sequential(nn.Linear(4, 4), Square(), nn.Linear(4, 2), Square()).half()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.5)
    setting = capture_of(model, lambda _: model(torch.ones(2, 4, dtype=torch.float16)).float().mean())
    assert not run_arm("again", setting).passed
    assert run_arm("float32", setting).passed
    assert run_arm("bfloat16", setting).passed
    assert not run_arm("module-float32=0", setting).passed
    assert not run_arm("loss-scale-1", setting).passed


def test_replaced_rows_are_other_rows_of_the_matrix():
    model = Tiny()
    with torch.no_grad():
        model.embed.weight[3] = 1e-8
        model.embed.weight[5] = 1e-8
    own = model.embed.weight.detach().clone()
    _, seen, _ = last_seen("replace-embedding-rows=3,5", model)
    assert seen["row"].norm() > 0.1
    assert any(torch.equal(seen["row"], row) for i, row in enumerate(own) if i not in (3, 5))
    assert torch.equal(model.embed.weight, own)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
def test_repaired_weight(value):
    model = Tiny()
    own = model.inner.weight.detach().clone()
    with torch.no_grad():
        model.inner.weight[2, 1] = value
    _, seen, _ = last_seen("repair-weight=inner.weight", model)
    own[2, 1] = 0
    assert torch.equal(seen["inner"], own)
    with pytest.raises(KeyError):
        last_seen("repair-weight=no.such.weight")


def test_a_buffer_can_be_repaired():
    model = Tiny().eval()
    model.norm.running_mean[1] = math.nan
    setting = setting_of(model)
    assert not run_arm("again", setting).passed
    assert run_arm("repair-weight=norm.running_mean", setting).passed
    assert model.norm.running_mean[1].isnan()


def test_every_token_labelled():
    model = Tiny()
    ignored = torch.full_like(IDS, -100)
    setting = capture_of(model, lambda _: model(input_ids=IDS, labels=ignored))
    assert not run_arm("again", setting).passed
    assert run_arm("label-every-token", setting).passed
    assert torch.equal(model.seen[-1]["labels"], IDS)
    assert not run_arm("shuffle-tokens", setting).passed


def test_ids_that_are_no_tokens_are_not_labels():
    model = Tiny()
    images = IDS.clone()
    images[0, 1], images[1, 2] = -3, 400  # as an image is marked; the stand-in embeds them all
    model.embed.forward = lambda ids: nn.functional.embedding(ids.clamp(0, 15), model.embed.weight)
    setting = capture_of(model, lambda _: model(input_ids=images, labels=torch.full_like(IDS, -100)))
    run_arm("label-every-token", setting)
    labels = model.seen[-1]["labels"]
    assert (labels[0, 1], labels[1, 2]) == (-100, -100)
    assert torch.equal(labels[labels != -100], images[labels != -100])


def test_a_model_that_does_not_predict_tokens_is_not_given_them_as_labels():
    model = Tiny()
    model.head = nn.Linear(8, 9)
    setting = capture_of(model, lambda _: model(input_ids=IDS, labels=torch.full_like(IDS, -100)))
    with pytest.raises(ValueError, match="does not predict tokens"):
        run_arm("label-every-token", setting)


def test_shuffled_tokens_are_the_same_tokens_in_another_order():
    _, seen, _ = last_seen("shuffle-tokens")
    assert not torch.equal(seen["ids"], IDS)
    assert torch.equal(seen["ids"].sort(dim=1).values, IDS)
    assert seen["labels"][0].tolist() == [-100] * 4


def test_arms_on_the_inputs_do_not_reach_a_model_that_takes_them_by_position():
    model = Tiny()
    setting = capture_of(model, lambda _: model(IDS, IDS))
    for spelling in ("label-every-token", "shuffle-tokens"):
        with pytest.raises((KeyError, ValueError)):
            run_arm(spelling, setting)


def test_update_times():
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=1000.0)
    setting = setting_of(model, optimizer=optimizer)
    wild, small = run_arm("update-times=1", setting), run_arm("update-times=0.0001", setting)
    assert wild.losses == small.losses
    assert not wild.passed
    assert small.passed
    assert small.trial.losses[0] < small.losses[0]
    assert optimizer.param_groups[0]["lr"] == 1000.0
    assert not optimizer.state


class Attends(Tiny):
    """Its first position sees no key."""

    def forward(self, input_ids, labels=None):
        h = self.embed(input_ids)
        unseen = torch.ones(4, 4).tril(-1) == 0
        scores = (self.inner(h) @ h.mT).masked_fill(unseen, -math.inf)
        self.seen.append(scores.softmax(-1))
        return self.head(self.seen[-1] @ h).square().mean()


@pytest.mark.parametrize(("spelling", "cured"), [("zero-empty-rows", True), ("zero-other-rows", False)])
def test_zeros_where_attention_sees_no_key(spelling, cured):
    outcome, weights, setting = last_seen(spelling, Attends())
    assert outcome.finite == cured
    if cured:
        assert not weights[:, 0].any()
        assert torch.allclose(weights[:, 1:].sum(-1), torch.ones(len(weights), 3))
    run_arm("again", setting)
    assert weights[:, 2 + (not cured) :].equal(setting.model.seen[-1][:, 2 + (not cured) :])


@pytest.mark.parametrize("spelling", ["no-such-arm", "nullcontext", "_changed", "input-embedding", ""])
def test_what_is_no_arm_is_refused_with_the_names_there_are(spelling):
    with pytest.raises(ValueError, match="module-float32"):
        arm(spelling)


def test_the_input_embedding_of_models_that_say_it_and_of_those_that_do_not():
    from finitune.gym.models import tiny

    llama = tiny("llama", hidden=32, vocabulary=128)
    assert input_embedding(llama) is llama.model.embed_tokens
    model = Tiny()
    assert input_embedding(model) is model.embed
    assert input_embedding(nn.Linear(2, 2)) is None


class Casting(Tiny):
    """Turns autocast on in its own forward, twice with the same object, as accelerate makes a model do."""

    def __init__(self):
        super().__init__()
        self.autocast = torch.autocast("cpu", torch.float16)

    def forward(self, input_ids, labels=None):
        with self.autocast:
            return super().forward(input_ids, labels)


@pytest.mark.parametrize(
    ("spelling", "dtype"), [("again", torch.float16), ("float32", torch.float32), ("bfloat16", torch.bfloat16)]
)
def test_an_arm_reaches_the_autocast_that_the_model_itself_turns_on(spelling, dtype):
    model = Casting()
    setting = setting_of(model, micro_steps=2)
    own = torch.autocast.__enter__
    model.seen.clear()
    run_arm(spelling, setting)
    assert {seen["hidden"] for seen in model.seen} == {dtype}
    assert (model.autocast.fast_dtype, model.autocast._enabled) == (torch.float16, True)
    assert torch.autocast.__enter__ is own


class HalfAdapter(nn.Module):
    """Computes in float16 whatever it is given, as code does that spells its casts."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(8, 8)
        self.head = nn.Linear(8, 16)

    def forward(self, input_ids, labels=None):
        x = torch.full((*input_ids.shape, 8), 3e4)
        low = F.linear(x.half(), self.inner.weight.half()).to(torch.float16) * 8
        logits = self.head(low.float())
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def test_casts_that_the_code_spells_are_no_float16_in_float32():
    model = HalfAdapter()
    setting = capture_of(model, lambda _: model(input_ids=IDS, labels=IDS))
    assert not run_arm("again", setting).passed
    assert run_arm("float32", setting).passed
