"""Spectral smoothing of sea temperature on a network of buoys, month by month. The network of a month is built from
the buoys that reported; its normalised Laplacian gives a Fourier basis in which a learned low-pass response is
applied. The few parameters are fitted with L-BFGS."""
import torch
from torch import nn


def months(n, seed):
    gen = torch.Generator().manual_seed(seed)
    for month in range(n):
        buoys = int(torch.randint(14, 22, (1,), generator=gen))
        where = torch.rand(buoys, 2, generator=gen) * torch.tensor([4.0, 3.0])
        if month == 6:
            where[5] = torch.tensor([23.0, 17.0])           # adrift since the storm, transmitting all the same
        field = 14 + 2 * torch.sin(where[:, 0]) + torch.cos(1.5 * where[:, 1])
        yield where, field + 0.5 * torch.randn(buoys, generator=gen), field


def network(where, reach=1.0, cut=1e-3):
    sq = (where[:, None] - where[None]).square().sum(-1)
    w = torch.exp(-sq / (2 * reach ** 2))
    w = torch.where(w > cut, w, torch.zeros_like(w))
    return w - torch.diag(w.diagonal())


def normalised_laplacian(w):
    inv_root = w.sum(1).pow(-0.5)
    return torch.eye(len(w)) - inv_root[:, None] * w * inv_root[None, :]


class LowPass(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_cut = nn.Parameter(torch.tensor(0.5))
        self.log_slope = nn.Parameter(torch.tensor(0.0))
        self.mean = nn.Parameter(torch.tensor(13.0))

    def response(self, frequency):
        return torch.sigmoid(self.log_slope.exp() * 4 * (self.log_cut.exp() - frequency))

    def forward(self, laplacian, signal):
        frequency, basis = torch.linalg.eigh(laplacian)
        spectrum = basis.T @ (signal - self.mean)
        return self.mean + basis @ (self.response(frequency) * spectrum)


class MonthlyFit:
    def __init__(self, filt):
        self.filt = filt
        self.opt = torch.optim.LBFGS(filt.parameters(), lr=0.3, max_iter=4, history_size=5)

    def month(self, where, noisy, clean):
        laplacian = normalised_laplacian(network(where))

        def closure():
            self.opt.zero_grad()
            loss = (self.filt(laplacian, noisy) - clean).square().mean() + 1e-3 * self.filt.log_slope ** 2
            loss.backward()
            return loss

        return self.opt.step(closure).item()


def main():
    torch.manual_seed(110)
    fitter = MonthlyFit(LowPass())
    for k, data in enumerate(months(12, seed=111), 1):
        print(f"month {k:2d} error {fitter.month(*data):.5f}", flush=True)
    print("finite", int(all(p.isfinite().all() for p in fitter.filt.parameters())))


if __name__ == "__main__":
    main()
