"""Wear states of an escalator from its vibration level: a Gaussian hidden Markov model whose
parameters are learned by autograd through the scaled forward recursion."""
import math

import torch
import torch.nn as nn


def simulate(n_nights, n_minutes, gen):
    means = torch.tensor([-2.0, 0.0, 2.0])
    trans = torch.tensor([[0.93, 0.06, 0.01], [0.05, 0.90, 0.05], [0.01, 0.06, 0.93]])
    out = torch.empty(n_nights, n_minutes)
    for i in range(n_nights):
        s = int(torch.randint(3, (1,), generator=gen))
        for t in range(n_minutes):
            out[i, t] = means[s] + 0.08 * torch.randn((), generator=gen)
            s = int(torch.multinomial(trans[s], 1, generator=gen))
    out[9, 31] = 4.9           # somebody dragged a trolley up the steps
    return out


class WearHMM(nn.Module):
    def __init__(self, k=3):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(k))
        self.trans = nn.Parameter(2.0 * torch.eye(k))
        self.mean = nn.Parameter(torch.tensor([-1.4, 0.3, 1.4]))
        self.log_sigma = nn.Parameter(torch.zeros(k))

    def emission(self, x):
        sigma = self.log_sigma.exp()
        z = (x.unsqueeze(-1) - self.mean) / sigma
        return torch.exp(-0.5 * z * z) / (sigma * math.sqrt(2 * math.pi))

    def forward(self, x):
        """Log-likelihood of each night."""
        b = self.emission(x)
        a = self.trans.softmax(dim=-1)
        alpha = self.start.softmax(dim=-1) * b[:, 0]
        scale = alpha.sum(dim=-1, keepdim=True)
        alpha = alpha / scale
        total = torch.log(scale)
        for t in range(1, x.shape[1]):
            alpha = (alpha @ a) * b[:, t]
            scale = alpha.sum(dim=-1, keepdim=True)
            alpha = alpha / scale          # keep the recursion in range
            total = total + torch.log(scale)
        return total.squeeze(-1)


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(77)
    nights = simulate(n_nights=28, n_minutes=60, gen=gen)
    model = WearHMM()
    opt = torch.optim.Adam([
        {"params": [model.start, model.trans], "lr": 0.03},
        {"params": [model.mean, model.log_sigma], "lr": 0.08},
    ])
    for epoch in range(1, 61):
        opt.zero_grad()
        loss = -model(nights).sum() / nights.numel()
        loss.backward()
        opt.step()
        sig = " ".join(f"{v:.4f}" for v in model.log_sigma.detach().exp().tolist())
        print(f"epoch {epoch} nll/min {loss.item():.6f}", flush=True)
        if epoch % 20 == 0:
            stay = model.trans.detach().softmax(-1).diagonal().mean().item()
            print(f"# sigma {sig} stay {stay:.4f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
