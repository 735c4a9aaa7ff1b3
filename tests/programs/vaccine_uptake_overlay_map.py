"""Map of vaccine uptake: doses per cell of an overlay of health districts and postcode areas.

The chance that a household of a cell came at all is 1 - exp(-share * rate): a complementary log-log model with the
share of the district that lies in the cell as the exposure.
"""
import argparse

import torch


class CloglogNLL(torch.autograd.Function):
    """- y log(1 - exp(-m)) + (1 - y) m, with m = exp(eta).  Own derivative: it is two lines and saves a graph."""

    @staticmethod
    def forward(ctx, eta, y):
        m = torch.exp(eta)
        ctx.save_for_backward(m, y)
        return -(y * torch.log(-torch.expm1(-m)) - (1 - y) * m)

    @staticmethod
    def backward(ctx, upstream):
        m, y = ctx.saved_tensors
        stay = torch.exp(-m)
        ratio = stay / (1 - stay)
        return upstream * m * ((1 - y) - y * ratio), None


class UptakeField(torch.nn.Module):
    def __init__(self, centres, covariates):
        super().__init__()
        self.register_buffer("centres", centres)
        self.height = torch.nn.Parameter(torch.zeros(len(centres)))
        self.slope = torch.nn.Parameter(torch.zeros(covariates))
        self.level = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, where, cov, share):
        kernel = torch.exp(-((where[:, None] - self.centres) ** 2).sum(-1) / 0.08)
        return self.level + kernel @ self.height + cov @ self.slope + torch.log(share)


def overlay(cells, gen):
    where = torch.rand(cells, 2, generator=gen)
    cov = torch.randn(cells, 3, generator=gen)
    cut = torch.rand(cells, generator=gen)
    share = 0.15 + 0.85 * cut
    thin = cut > 0.9973
    share[thin] = (1 - cut[thin]) ** 3.2
    eta = 0.9 * torch.sin(5 * where[:, 0]) + cov @ torch.tensor([0.4, -0.3, 0.1]) + share.log()
    y = (torch.rand(cells, generator=gen) < 1 - torch.exp(-eta.exp())).float()
    return where, cov, share, y


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--weeks", type=int, default=32)
    ap.add_argument("--cells", type=int, default=40)
    ap.add_argument("--seed", type=int, default=3)
    args = ap.parse_args(argv)

    gen = torch.Generator().manual_seed(args.seed)
    grid = torch.cartesian_prod(torch.linspace(0, 1, 5), torch.linspace(0, 1, 5))
    field = UptakeField(grid, covariates=3)
    opt = torch.optim.NAdam(field.parameters(), lr=0.05)
    for week in range(1, args.weeks + 1):
        where, cov, share, y = overlay(args.cells, gen)
        eta = field(where, cov, share)
        nll = CloglogNLL.apply(eta, y).mean()
        rough = 0.02 * (field.height.view(5, 5).diff(dim=0) ** 2).sum()
        opt.zero_grad(set_to_none=True)
        (nll + rough).backward()
        opt.step()
        print(f"week {week:3d} | nll {nll.item():.5f} | roughness {rough.item():.5f}")
    weight = torch.cat([p.detach().reshape(-1) for p in field.parameters()])
    print(f"done, |field| = {weight.abs().sum().item():.6f}")


if __name__ == "__main__":
    main()
