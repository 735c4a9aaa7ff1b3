# Rating curves (stage -> discharge) for a network of gauges, with torch.func.
#
# Every gauge has one vote: the gradient of each sample is brought to length one before averaging, else the
# Danube tells the brooks what to do. Per-sample gradients by vmap(grad(.)), the update is plain SGD with
# momentum on the averaged direction.
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

torch.manual_seed(88)
G = torch.Generator().manual_seed(14)
GAUGES, HOURS = 10, 24


class RatingCurve(nn.Module):
    """log Q from log stage, rate of rise, and basin descriptors; monotone in the stage."""

    def __init__(self, d=16):
        super().__init__()
        self.basin = nn.Linear(3, d)
        self.stage = nn.Parameter(torch.randn(d) * 0.3)
        self.rise = nn.Parameter(torch.zeros(d))
        self.mix = nn.Parameter(torch.randn(d) * 0.2)

    def forward(self, stage, rise, basin):
        h = torch.tanh(self.basin(basin) + stage.unsqueeze(-1) * self.stage.exp() + rise.unsqueeze(-1) * self.rise)
        return (h * self.mix.exp()).sum(-1)


def observe():
    """One hydrograph of one gauge; `valid` says in which hours the current meter gave a discharge."""
    basin = torch.randn(3, generator=G)
    t = torch.linspace(0, 1, HOURS)
    peak = 0.2 + 0.5 * torch.rand(1, generator=G)
    stage = 0.3 + torch.exp(-((t - peak) / 0.15) ** 2) * (1 + 0.3 * basin[0])
    rise = torch.diff(stage, prepend=stage[:1])
    flow = 1.6 * stage + 0.4 * basin[1] + 0.8 * rise + 0.05 * torch.randn(HOURS, generator=G)
    valid = torch.rand(HOURS, generator=G) > 0.3
    return stage, rise, basin, flow, valid


def campaign(n):
    rows = [observe() for _ in range(n)]
    # flood of the 14th: the cableway of one gauge was swept away, stage went on being recorded
    rows[147][4].zero_()
    return [torch.stack(col) for col in zip(*rows)]


def sample_loss(params, model, stage, rise, basin, flow, valid):
    pred = functional_call(model, params, (stage, rise, basin))
    err = nn.functional.huber_loss(pred, flow, reduction="none", delta=0.5)
    return (err * valid).sum() / valid.sum().clamp(min=1)


def equal_votes(per_sample):
    """Average of unit-length per-sample gradients over the whole parameter vector."""
    names = list(per_sample)
    flat = torch.cat([per_sample[n].flatten(1) for n in names], dim=1)
    length = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    direction = flat / length
    mean = direction.mean(0)
    out, at = {}, 0
    for n in names:
        size = per_sample[n][0].numel()
        out[n] = mean[at:at + size].view_as(per_sample[n][0])
        at += size
    return out, length


def main():
    model = RatingCurve()
    opt = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.8)
    data = campaign(32 * GAUGES)
    per_gauge = vmap(grad_and_value(lambda p, *row: sample_loss(p, model, *row)), in_dims=(None, 0, 0, 0, 0, 0))
    for step in range(32):
        rows = [col[step * GAUGES:(step + 1) * GAUGES] for col in data]
        params = {n: p.detach() for n, p in model.named_parameters()}
        grads, losses = per_gauge(params, *rows)
        direction, length = equal_votes(grads)
        opt.zero_grad()
        for n, p in model.named_parameters():
            p.grad = direction[n].clone()
        opt.step()
        print(f"day {step + 1:2d}  huber {losses.mean().item():.6f}")
    print(f"curve parameters sum {sum(p.detach().double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
