"""Operators that no table lists: found by the name of their node, and applied again to the same values."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from finitune.monitor.loss_graph.loss_operators import OPERATORS
from finitune.monitor.loss_graph.node_operators import kept_of
from finitune.monitor.loss_graph.objective import number_of, read, terms

OTHER = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)
LOSSES = {
    "cosh": lambda x: x.cosh(),
    "atan": lambda x: x.atan(),
    "erfinv": lambda x: (x * 0.1).erfinv(),
    "cdist": lambda x: torch.cdist(x, x * 2),
    "pdist": lambda x: F.pdist(x),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=2),
    "cummax": lambda x: x.cummax(1).values,
    "logit": lambda x: x.sigmoid().logit(eps=1e-3),
    "solve": lambda x: torch.linalg.solve(x @ x.T, x),
    "cholesky of a sum": lambda x: torch.linalg.cholesky(x @ x.T + torch.eye(3)),
    "pairwise distance": lambda x: F.pairwise_distance(x, OTHER),
    "rms norm": lambda x: F.rms_norm(x, (4,)),
    "label smoothing": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2]), label_smoothing=0.1),
    "softsign": F.softsign,
    "max pool": lambda x: F.max_pool1d(x[None], 2),
    "convolution": lambda x: F.conv1d(x[None], OTHER[None, :2, :3].mT.reshape(2, 3, 1)),
    "sorted": lambda x: x.sort(1).values * OTHER,
    "sorted downwards": lambda x: x.sort(stable=True, dim=0, descending=True).values * OTHER,
    "the largest": lambda x: x.topk(2, 1).values.square(),
    "the smallest": lambda x: x.topk(2, 0, largest=False).values.exp(),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "concatenation with a constant": lambda x: torch.cat([x, OTHER]).square().exp(),
    "the derivative of an index": lambda x: torch.autograd.grad(x[[0, 2]].exp().sum(), x, create_graph=True)[0],
    "written into zeros": lambda x: torch.zeros(4, 4).index_put((torch.tensor([0, 3, 1]),), x.exp()),
    "a stack with a constant": lambda x: torch.stack([OTHER, x, OTHER]).square(),
}


def given():
    torch.manual_seed(0)
    return torch.randn(3, 4, requires_grad=True) * 1.0


@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_come_out_the_same(name):
    x = given()
    loss = LOSSES[name](x).sum()
    (expected,) = torch.autograd.grad(loss, x, retain_graph=True)
    objective = read(loss, {number_of(x)})
    again = x.detach().requires_grad_()
    rebuilt = objective.rebuild({number_of(x): again})
    assert torch.allclose(rebuilt, loss)
    assert torch.allclose(torch.autograd.grad(rebuilt, again)[0], expected)


def test_several_parts_without_a_graph_are_zeros_in_a_sum():
    x = given()
    loss = torch.cat([OTHER, x]).mean()
    objective = read(loss, {number_of(x)})
    assert objective.constant
    assert torch.allclose(objective.rebuild({number_of(x): x}), x.sum() / 24)


@pytest.mark.parametrize("draws", [lambda x: F.dropout(x, 0.5), lambda x: F.rrelu(x, 0.1, 0.3, training=True)])
def test_what_draws_random_numbers_is_not_applied_again(draws):
    node = draws(given()).grad_fn
    assert kept_of(node, 0) is None or node.name() in OPERATORS


def test_a_function_of_the_users_own_is_no_operator():
    class Cosh(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.cosh()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    assert kept_of(Cosh.apply(given()).grad_fn, 0) is None


def test_no_file_names_such_an_operator():
    x = given()
    objective = read(x.cosh().sum(), {number_of(x)})
    assert objective.only_here
    assert [term.name for term in terms(objective.whole) if term.name not in OPERATORS] == ["CoshBackward0"]


def test_an_addition_beneath_a_product_of_two_outputs_is_no_shift_of_the_loss():
    """softsign: x / (1 + |x|); the 1 is no constant of the loss."""
    x = given()
    assert not read(F.softsign(x).sum(), {number_of(x)}).constant
