"""Each operator that a loss may be made of, read off the graph and run again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.monitor.loss_graph.test_objective import LENGTH, VOCABULARY, labels, logits

from finitune.monitor.loss_graph.objective import NotReadable, number_of, read


def paired(function):
    """Of two parts of the output."""
    return lambda x: function(x[:, 0], x[:, 1])


def weighed(x):
    """One number, of which every element matters differently."""
    return (x * torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype).view(x.shape)).mean()


EACH = {
        "norm": lambda x: x.norm(dim=-1), "norm of all": lambda x: x.norm(), "one norm": lambda x: x.norm(p=1, dim=1),
        "acos": lambda x: x.tanh().acos(), "asin": lambda x: x.tanh().asin(), "cos": torch.cos, "sin": torch.sin,
        "tan": torch.tan, "erf": torch.erf, "expm1": torch.expm1, "log1p": lambda x: x.abs().log1p(),
        "log2": lambda x: x.abs().log2(), "log10": lambda x: x.abs().log10(), "lgamma": lambda x: x.abs().lgamma(),
        "digamma": lambda x: x.abs().digamma(), "silu": F.silu, "mish": F.mish, "gelu": F.gelu,
        "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "leaky relu": lambda x: F.leaky_relu(x, 0.2),
        "elu": lambda x: F.elu(x, 0.7), "selu": F.selu, "hardtanh": F.hardtanh, "amax": lambda x: x.amax(-1),
        "amin": lambda x: x.amin((0, 1)), "max": torch.max, "min": torch.min, "max along": lambda x: x.max(1).values,
        "min along": lambda x: x.min(1).values, "prod": torch.prod, "prod along": lambda x: x.prod(1),
        "cumprod": lambda x: x.cumprod(1), "var": lambda x: x.var(-1), "std": torch.std, "tril": torch.tril,
        "triu": lambda x: x.triu(1), "diagonal": lambda x: x.diagonal(1, 0, 2), "repeat": lambda x: x.repeat(2, 1, 1),
        "flip": lambda x: x.flip(1), "roll": lambda x: x.roll(1, 0),
        "index_select": lambda x: x.index_select(1, torch.tensor([0, 2])),
        "index_add": lambda x: torch.zeros(2, LENGTH, VOCABULARY).index_add(0, torch.tensor([0, 1, 1]), x),
        "scatter_add": lambda x: torch.zeros(x.shape).scatter_add(1, (labels() > 2).long()[:, :, None].expand_as(x), x),
        "unbind": lambda x: x.unbind(1)[2], "split": lambda x: x.split(2, 1)[1], "chunk": lambda x: x.chunk(2, -1)[1],
        "slogdet": lambda x: torch.linalg.slogdet(x[:, :, :LENGTH]).logabsdet,
        "inverse": lambda x: torch.linalg.inv(x[:, :, :LENGTH]),
        "singular values": lambda x: torch.linalg.svd(x).S,
        "eigenvalues": lambda x: torch.linalg.eigh(x @ x.transpose(1, 2)).eigenvalues,
        "pairwise distance": paired(F.pairwise_distance), "cosine": paired(F.cosine_similarity),
        "xlogy": lambda x: torch.xlogy(x[:, 0].abs(), x[:, 1].abs()), "atan2": paired(torch.atan2),
        "logaddexp": paired(torch.logaddexp), "power of itself": lambda x: x.abs() ** x,
        "normalised": lambda x: F.normalize(x, dim=-1),
    }  # fmt: skip


@pytest.mark.parametrize("name", EACH)
def test_the_same_value_and_gradient_and_those_of_other_outputs(name):
    def loss_of(x):
        return weighed(EACH[name](x))

    x = logits()
    number = number_of(x)
    objective = read(loss_of(x), {number})
    for values in (x.detach(), logits(seed=9).detach()):
        again, own = values.clone().requires_grad_(), values.clone().requires_grad_()
        rebuilt, expected = objective.rebuild({number: again}), loss_of(own)
        torch.testing.assert_close(rebuilt, expected)
        gradients = (torch.autograd.grad(loss, of)[0] for loss, of in ((rebuilt, again), (expected, own)))
        torch.testing.assert_close(*gradients)


HINGES = {
    "margin": lambda x: F.relu(0.3 - x), "sum": lambda x: F.relu(x[:, 0] - x[:, 1] + 0.2),
    "two": lambda x: F.relu(1 - x[0]) + F.relu(1 + x[1]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", HINGES)
def test_the_margin_of_a_hinge_is_found_from_where_it_is_exceeded(name, dtype):
    x = logits()
    number = number_of(x)
    loss = weighed(HINGES[name](x.to(dtype)))
    objective = read(loss, {number})
    assert objective.rebuild({number: x.detach()}).item() == pytest.approx(loss.item(), rel=1e-2)
    other = logits(seed=9).detach()
    expected = weighed(HINGES[name](other.to(dtype))).item()
    assert objective.rebuild({number: other}).item() == pytest.approx(expected, rel=1e-2)


def test_a_hinge_that_is_nowhere_exceeded_or_has_several_margins_is_not_read():
    for margin in (-9.0, torch.rand(3, LENGTH, VOCABULARY)):
        x = logits()
        number = number_of(x)
        objective = read(weighed(F.relu(margin - x)), {number})
        with pytest.raises(NotReadable, match="too little is known"):
            objective.rebuild({number: x.detach()})
