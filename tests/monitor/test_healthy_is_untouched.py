"""A healthy run under guard: the same losses, weights, optimizer state and random numbers, bit for bit, and silence."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest
import torch
from tests.monitor.loop import without_the_end
from torch import nn
from torch.optim import LBFGS, SGD, AdamW

from finitune.gym.data import batches
from finitune.gym.healthy import CONTROLS
from finitune.gym.loop import Options, prepare, train
from finitune.gym.models import tiny
from finitune.monitor.precision.float16_on_cpu import float16_on_cpu
from finitune.monitor.watch import watch
from finitune.recording import Recording


@pytest.fixture(autouse=True)
def fast_float16():
    with float16_on_cpu():
        yield


def small(family="llama", **config):
    return tiny(family, hidden=32, vocabulary=128, **config)


def data(count=6, **more):
    return batches(count, length=16, vocabulary=128, **more)


def adamw(parameters):
    return AdamW(parameters, lr=1e-3)


def dropout():
    model = small("gpt2", embd_pdrop=0.2, attn_pdrop=0.2, resid_pdrop=0.2)
    return prepare(model, data(), adamw)


def checkpointing():
    model = small("llama", attention_dropout=0.2)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return prepare(model, data(), adamw)


def checkpointing_reentrant():
    model = small("llama", attention_dropout=0.2)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    return prepare(model, data(), adamw)


def lora_with_dropout():
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.3)
        model = get_peft_model(small("mistral"), config)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return prepare(model, data(), lambda parameters: AdamW(parameters, lr=1e-2))


def lbfgs():
    options = Options(closure=True, clip=None)
    return prepare(small(), data(4), lambda p: LBFGS(p, max_iter=3, line_search_fn="strong_wolfe"), options)


MORE = {
    "float32": lambda: prepare(small(), data(), adamw),
    "no clipping": lambda: prepare(small(), data(), adamw, Options(clip=None)),
    "sgd": lambda: prepare(small(), data(), lambda p: SGD(p, lr=0.1, momentum=0.9)),
    "fused": lambda: prepare(small(), data(), lambda p: AdamW(p, lr=1e-3, fused=True)),
    "bfloat16": lambda: prepare(small(), data(), adamw, Options(dtype="bfloat16")),
    "float16 autocast": lambda: prepare(small(), data(), adamw, Options(dtype="float16-autocast")),
    "accumulation and scaler": lambda: prepare(
        small(), data(12), adamw, Options(dtype="float16-autocast", accumulate=3)
    ),
    "closure": lambda: prepare(small("gpt2"), data(), adamw, Options(closure=True)),
    "lbfgs": lbfgs,
    "dropout": dropout,
    "checkpointing": checkpointing,
    "checkpointing, reentrant": checkpointing_reentrant,
    "lora with dropout": lora_with_dropout,
}


def randomness():
    return torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002


def same_randomness(a, b):
    return (
        torch.equal(a[0], b[0]) and a[1] == b[1] and all(np.array_equal(x, y) for x, y in zip(a[2], b[2], strict=True))
    )


def trained(build, run_dir=None):
    """Losses and scales, weights, optimizer state and random states after the run, watched where `run_dir` is given."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002  whose state is the process's
    run = build()
    guard = watch(run.model, run.optimizer, run_dir=run_dir) if run_dir else contextlib.nullcontext()
    with guard:
        steps = [(step.loss, step.loss_scale) for step in train(run)]
    weights = {name: t.clone() for name, t in run.model.state_dict().items()}
    return steps, weights, run.optimizer.state_dict(), randomness()


def assert_same(a, b, path=""):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), path
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for number, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{path}/{number}")
    else:
        assert a == b, path


@pytest.mark.parametrize("name", [*CONTROLS, *MORE])
def test_bit_for_bit_and_silent(name, tmp_path, capsys):
    build = CONTROLS.get(name) or MORE[name]
    plain, watched = trained(build), trained(build, tmp_path / "run")
    assert plain[0] == watched[0]
    assert_same(plain[1], watched[1])
    assert_same(plain[2], watched[2])
    assert same_randomness(plain[3], watched[3])
    assert without_the_end(capsys.readouterr().err) == ""
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("incident", "broken", "stop", "log")
    recorded = recording.signals["loss"]
    assert len(recorded) == len(plain[0])
    if name != "lbfgs":  # whose closure is evaluated several times
        assert recorded.values.tolist() == pytest.approx([loss for loss, _ in plain[0]], rel=1e-3)


# A bad step that was investigated: nothing is left of the investigation but what it found


class Spoilt(nn.Module):
    """BatchNorm (whose buffers a forward changes), dropout, a frozen part, a part in evaluation mode."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.3)
        self.frozen = nn.Linear(16, 16).requires_grad_(requires_grad=False)
        self.still = nn.Dropout(0.3).eval()
        self.last = nn.Linear(16, 3)
        self.steps = 0

    def forward(self, x):
        h = self.still(self.frozen(self.drop(torch.relu(self.norm(self.first(x))))))
        return self.last(h)


def photograph(model, optimizer):
    """Everything about the model that an investigation might disturb."""
    modules = list(model.modules())
    hooks = [
        "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_forward_hooks_with_kwargs",
    ]  # fmt: skip
    return {
        "weights": {
            n: (p.data_ptr(), p.dtype, p.requires_grad, p.detach().clone()) for n, p in model.named_parameters()
        },
        "gradients": {n: None if p.grad is None else (id(p.grad), p.grad.clone()) for n, p in model.named_parameters()},
        "tensor hooks": {n: len(p._backward_hooks or ()) for n, p in model.named_parameters()},
        "buffers": {n: (id(b), b.clone()) for n, b in model.named_buffers()},
        "training": [m.training for m in modules],
        "hooks": [[len(getattr(m, name)) for name in hooks] for m in modules],
        "attributes": [sorted(vars(m)) for m in modules],
        "optimizer": {k: dict(v) for k, v in optimizer.state_dict()["state"].items()},
        "grad mode": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
    }


def assert_same_photograph(a, b):
    for key in a:
        assert str(a[key]) == str(b[key]), key  # NaN equals NaN here
    for name in a["weights"]:
        assert torch.equal(a["weights"][name][3].view(torch.int32), b["weights"][name][3].view(torch.int32))
    for name in a["buffers"]:
        assert torch.equal(a["buffers"][name][1], b["buffers"][name][1])


@pytest.mark.parametrize("fault", ["forward", "gradient", "parameter", "labels"])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16], ids=str)
def test_an_investigation_leaves_no_trace(fault, autocast, tmp_path):
    model = Spoilt()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    torch.manual_seed(5)
    bad = False
    if fault == "forward":
        model.frozen.register_forward_hook(lambda m, a, out: out * 1e38 * 1e10 if bad else out)
    if fault == "gradient":
        model.first.weight.register_hook(lambda g: g * float("inf") if bad else g)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for number in range(1, 4):
            bad = number == 3
            x, y = torch.randn(8, 6), torch.randint(3, (8,))
            if bad and fault == "parameter":
                with torch.no_grad():
                    model.last.weight[0, 0] = float("nan")
            if bad and fault == "labels":
                y = torch.full_like(y, -100)
            with torch.autocast("cpu", autocast, enabled=autocast is not None):
                loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            if not bad:
                optimizer.step()
                optimizer.zero_grad()
        before, numbers = photograph(model, optimizer), randomness()
        optimizer.step()
        after = photograph(model, optimizer)
        assert same_randomness(numbers, randomness())
        assert_same_photograph(before, after)
    recording = Recording.load(tmp_path / "run")
    (origin,) = recording.events("origin")
    assert origin["repeats"], "so it was run again"
    assert not recording.events("broken")


def test_dropout_is_drawn_the_same_in_every_rerun(tmp_path):
    """A fault that depends on which units are dropped repeats, bit for bit."""
    model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 2))
    optimizer = SGD(model.parameters(), lr=1e-2)
    torch.manual_seed(3)
    marked = []
    model[1].register_forward_hook(lambda m, a, out: marked.append((out == 0).clone()))
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        (model(torch.randn(4, 6)).sum() * float("inf")).backward()
        optimizer.step()
    assert len(marked) > 1
    assert all(torch.equal(marked[0], again) for again in marked)


@pytest.mark.parametrize("name", ["dropout", "lora with dropout", "checkpointing"])
def test_a_run_with_one_bad_step_goes_on_as_if_the_step_had_only_drawn_its_random_numbers(name, tmp_path):
    """Investigated and discarded, against the same loop that skips the step by itself, unwatched."""

    def run_with(discard_self):
        torch.manual_seed(7)
        run = MORE[name]()
        run.model.train()
        taken = 0
        last = [p for p in run.model.parameters() if p.requires_grad][-1]
        last.register_hook(lambda g: g * float("nan") if taken == 3 else g)
        guard = contextlib.nullcontext() if discard_self else watch(run.model, run.optimizer, run_dir=tmp_path / "run")
        with guard:
            for batch in run.batches:
                taken += 1
                run.model(**batch).loss.backward()
                if not (discard_self and taken == 3):
                    run.optimizer.step()
                run.optimizer.zero_grad()
        return run.model.state_dict(), run.optimizer.state_dict(), randomness()

    by_hand, guarded = run_with(discard_self=True), run_with(discard_self=False)
    assert_same(by_hand[0], guarded[0])
    assert_same(by_hand[1], guarded[1])
    assert same_randomness(by_hand[2], guarded[2])
    assert [e["step"] for e in Recording.load(tmp_path / "run").events("incident")] == [3]
