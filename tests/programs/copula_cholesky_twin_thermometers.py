"""
Gaussian copula for a string of borehole thermometers.

The correlation matrix is parametrised by canonical partial correlations z = tanh(y)
(Lewandowski, Kurowicka & Joe 2009), filled in row by row, and fitted to the
sample correlation with Rprop.  Channels 0 and 1 hang at the same depth on the same wire.
"""
import torch


def data(n=400, k=6):
    g = torch.Generator().manual_seed(909)
    depth = torch.tensor([1.0, 1.0, 2.0, 4.0, 7.0, 11.0])
    season = torch.randn(n, 1, generator=g)
    drift = torch.cumsum(0.1 * torch.randn(n, 1, generator=g), 0)
    noise = torch.randn(n, k, generator=g) * 0.4
    x = season * torch.exp(-depth / 4) + drift * 0.3 + noise
    x[:, 1] = x[:, 0]                         # one wire, two channels
    return x


class CanonicalCorrelation(torch.nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
        self.y = torch.nn.Parameter(torch.full((k * (k - 1) // 2,), 0.05))

    def forward(self):
        z = torch.tanh(self.y)
        rows, at = [], 0
        for i in range(self.k):
            left = torch.ones(())             # what of the unit length is not used yet
            row = []
            for j in range(i):
                length = torch.sqrt(left)
                row.append(z[at] * length)
                left = left * (1 - z[at] ** 2)
                at += 1
            row.append(torch.sqrt(left))
            row += [torch.zeros(())] * (self.k - i - 1)
            rows.append(torch.stack(row))
        chol = torch.stack(rows)
        return chol @ chol.T


def main():
    x = data()
    x = (x - x.mean(0)) / x.std(0, unbiased=False)
    sample = x.T @ x / x.shape[0]
    corr = CanonicalCorrelation(x.shape[1])
    opt = torch.optim.Rprop(corr.parameters(), lr=0.5, etas=(0.5, 1.3))
    for step in range(1, 51):
        opt.zero_grad()
        model = corr()
        loss = (model - sample).square().sum()
        loss.backward()
        opt.step()
        print(f"{step:3d} frobenius^2 {loss.item():.9f}  r(0,1) {model[1, 0].item():.7f}")
    print("final", corr.y.detach().abs().sum().item())


if __name__ == "__main__":
    main()
