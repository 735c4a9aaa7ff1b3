"""Meta-learning over dairies: one net learns to fit the acidity curve of a new kefir culture from ten readings.

Everything is functional (torch.func).  A reading counts as fitted when it is within the tolerance of the probe, and
the inner steps have a learned length, the gradient giving the direction only.
"""
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

TOLERANCE, SUPPORT, QUERY, CULTURES, INNER = 0.07, 10, 16, 6, 3


def make_net():
    return nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))


def culture_batch(generator):
    """Curves rise like a logistic; how far, how early and how steep depends on the grains."""
    rise = 1.0 + 1.5 * torch.rand(CULTURES, 1, generator=generator)
    middle = 2 * torch.rand(CULTURES, 1, generator=generator) - 1
    steep = 1.5 + 2 * torch.rand(CULTURES, 1, generator=generator)
    hours = 4 * torch.rand(CULTURES, SUPPORT + QUERY, generator=generator) - 2
    acid = rise * torch.sigmoid(steep * (hours - middle)) - 0.5 * rise
    acid = acid + 0.02 * torch.randn(acid.shape, generator=generator)
    return hours.unsqueeze(-1), acid.unsqueeze(-1)


def tube_loss(net, params, x, y):
    error = (functional_call(net, params, (x,)) - y).abs()
    return torch.relu(error - TOLERANCE).mean()


def adapt(net, params, lengths, x, y):
    for k in range(INNER):
        slope = grad(lambda p: tube_loss(net, p, x, y))(params)
        size = torch.sqrt(sum(g.pow(2).sum() for g in slope.values()))
        params = {name: p - lengths[name][k] * slope[name] / size for name, p in params.items()}
    return params


def meta_loss(net, params, lengths, x, y):
    def one(x, y):
        fitted = adapt(net, params, lengths, x[:SUPPORT], y[:SUPPORT])
        return (functional_call(net, fitted, (x[SUPPORT:],)) - y[SUPPORT:]).pow(2).mean()
    return vmap(one)(x, y)


def main():
    torch.manual_seed(6)
    generator = torch.Generator().manual_seed(61)
    net = make_net()
    params = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    lengths = {name: torch.full((INNER,), 0.05, requires_grad=True) for name in params}
    optimizer = torch.optim.Adam([{"params": list(params.values()), "lr": 2e-3},
                                  {"params": list(lengths.values()), "lr": 1e-3}])
    for round_ in range(1, 51):
        x, y = culture_batch(generator)
        each = meta_loss(net, params, lengths, x, y)
        loss = each.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"round {round_:02d} query {loss.item():.6f} worst {each.max().item():.6f}", flush=True)
    everything = list(params.values()) + list(lengths.values())
    print(f"{sum(p.detach().abs().sum().item() for p in everything):.4f}")


if __name__ == "__main__":
    main()
