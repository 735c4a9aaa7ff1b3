"""Where the user's own code spells an operator of its loss, read off the frames that run."""

from __future__ import annotations

import functools
import linecache
import sys

import pytest
import torch
from tests.monitor import user_program
from torch import nn
from torch.func import vmap

from finitune.monitor.statements.operator_lines import only_place, only_place_of

LIBRARY = f"{sys.prefix}/lib/python3/site-packages/library.py"


def users(source, node, **given):
    """What `only_place(node)` finds while the last line of a program runs."""
    x = torch.ones(3, requires_grad=True)
    return user_program.found(source, lambda: only_place(node), x=x, nn=nn, vmap=vmap, functools=functools, **given)


FOLLOWED = {
    "a function": """
def spread(x):
    return x.var().sqrt()
spread(x).backward()
""",
    "in turn": """
def root(x):
    return torch.sqrt(x)
def every(x):
    return root(x).sum()
loss = every(x)
loss.backward()
""",
    "a variable": """
a = x * 2
b = a.sqrt()
loss = b.sum()
loss.backward()
""",
    "a method": """
class A:
    def loss(self, x):
        return self.part(x).sum()
    def part(self, x):
        return x.sqrt()
A_ = A()
A_.loss(x).backward()
""",
    "a module that nobody watches": """
class Loss(nn.Module):
    def forward(self, x):
        return x.sqrt().sum()
criterion = Loss()
criterion(x).backward()
""",
    "a partial and a transform": """
def one(p, x):
    return (x * p).sqrt()
many = vmap(functools.partial(one, 2.0))
loss = many(x).sum()
loss.backward()
""",
    "a closure": """
def made():
    def inner(x):
        return x.sqrt()
    def outer(x):
        return inner(x).sum()
    return outer
outer = made()
outer(x).backward()
""",
    "a list": """
terms = []
for k in range(3):
    terms.append((x * k + 1).sqrt())
loss = sum(terms).sum()
loss.backward()
""",
    "what an accelerator is given": """
class Accelerator:
    def backward(self, loss):
        loss.backward()
accelerator = Accelerator()
loss = x.sqrt().sum()
accelerator.backward(loss)
""",
    "twice in one line": """
loss = (x.sqrt() - (x + 1).sqrt()).sum()
loss.backward()
""",
}


@pytest.mark.parametrize("source", FOLLOWED.values(), ids=FOLLOWED)
def test_the_only_place_is_found(source):
    at = users(f"{source}found()\n", "SqrtBackward0")
    assert at is not None
    assert "sqrt" in at.partition(": ")[2]


@pytest.mark.parametrize(
    ("line", "node"),
    [
        ("loss = (x / x.sum()).sum()", "DivBackward0"),
        ("loss = x.sum()\nloss /= 3", "DivBackward0"),
        ("loss = (x ** 0.5).sum()", "PowBackward0"),
        ("loss = x.square().sum()", "PowBackward0"),
        ("loss = x.norm()", "LinalgVectorNormBackward0"),
        ("loss = torch.linalg.eigh(torch.outer(x, x))[0].sum()", "LinalgEighBackward0"),
        ("loss = x.logsumexp(0)", "LogsumexpBackward0"),
        ("loss = F.log_softmax(x, -1).sum()", "LogSoftmaxBackward0"),
        ("loss = F.cross_entropy(x[None], torch.tensor([0]))", "NllLossBackward0"),
        ("loss = F.normalize(x, dim=0).sum()", "DivBackward0"),
        ("criterion = nn.MSELoss()\nloss = criterion(x, x.detach())", "MseLossBackward0"),
    ],
)
def test_an_operator_is_known_by_its_spellings(line, node):
    at = users(f"{line}\nloss.backward()\nfound()\n", node)
    assert at is not None
    assert at.endswith(line.splitlines()[-1])


@pytest.mark.parametrize(
    "source",
    [
        "a = x.sqrt()\nloss = a.sqrt().sum()\nloss.backward()\nfound()\n",  # two places
        "a = x.sqrt()\nloss = x.sum()\nloss.backward()\nfound()\n",  # none in the loss
        "loss = x.sum()\nfound()\n",  # no backward
        "def f(x):\n    return x.sqrt()\nloss = unknown['f'](x)\nloss.backward()\nfound()\n",  # not to be looked up
    ],
)
def test_elsewhere_nothing_is_claimed(source):
    assert users(source, "SqrtBackward0", unknown={"f": torch.sum}) is None


def test_text_that_is_repeated_is_no_product():
    source = "letters = ('a' + 'b') * 3\nmark = f'{letters}' * 2\nloss = x.mul(2).sum()\nloss.backward()\nfound()\n"
    assert users(source, "MulBackward0").endswith("loss = x.mul(2).sum()")


def test_of_two_losses_it_is_the_one_that_was_stepped_on_last():
    source = """
class Optimizer:
    def step(self):
        pass
d, g = Optimizer(), Optimizer()
first = x.sqrt().sum()
first.backward()
d.step()
second = x.sum()
second.backward()
found()
"""
    assert users(source, "SqrtBackward0") is None
    assert users(source.replace("x.sum()", "(x + 1).sqrt().sum()"), "SqrtBackward0").endswith("(x + 1).sqrt().sum()")


def test_what_a_library_computes_is_no_place_of_the_users(tmp_path):
    names = {}
    source = "def root(x):\n    return x.sqrt().sum()\n"
    linecache.cache[LIBRARY] = (len(source), None, source.splitlines(keepends=True), LIBRARY)
    exec(compile(source, LIBRARY, "exec"), names)
    assert users("loss = root(x)\nloss.backward()\nfound()\n", "SqrtBackward0", root=names["root"]) is None


TRAINER = """
class Trainer:
    def fit(self, x, look):
        loss = self.{name}(x)
        loss.backward()
        look()
"""


@pytest.mark.parametrize("name", ["training_step", "compute_loss", "forward"])
def test_a_trainer_of_a_library_calls_the_backward(name):
    source, names = TRAINER.format(name=name), {}
    linecache.cache[LIBRARY] = (len(source), None, source.splitlines(keepends=True), LIBRARY)
    exec(compile(source, LIBRARY, "exec"), names)
    line = users(
        f"""
class Mine(Trainer):
    def {name}(self, x):
        return self.root(x).sum()

    def root(self, x):
        return x.sqrt()

Mine().fit(x, found)
""",
        "SqrtBackward0",
        Trainer=names["Trainer"],
    )
    assert line == (None if name == "forward" else "user_program.py:7 in root: return x.sqrt()")


def test_a_property_is_not_run():
    class Holder:
        @property
        def loss(self):
            raise AssertionError("run")

    assert users("y = x.sum()\ny.backward()\nloss = 1 if x is None else found()\n", "SqrtBackward0", h=Holder()) is None
    assert (
        users("z = x.sum() if x is not None else h.loss(x)\nz.backward()\nfound()\n", "SqrtBackward0", h=Holder())
        is None
    )


def test_of_several_places_the_one_that_a_statement_reaches():
    source = """
def ratio(x):
    return x.exp().sum()
class Penalty:
    def __call__(self, x):
        return x.exp().mean()
penalty = Penalty()
loss = ratio(x)
loss = loss + 0.1 * penalty(x)
loss.backward()
found()
"""
    assert users(source, "ExpBackward0") is None

    def look(line):
        x = torch.ones(3, requires_grad=True)
        return user_program.found(source, lambda: only_place_of("aten.exp", line), x=x)

    in_penalty = look("user_program.py:9: loss = loss + 0.1 * penalty(x)")
    assert in_penalty == "user_program.py:6 in __call__: return x.exp().mean()"
    assert look("user_program.py:8: loss = ratio(x)") == "user_program.py:3 in ratio: return x.exp().sum()"
    assert look("user_program.py:10: loss.backward()") is None
