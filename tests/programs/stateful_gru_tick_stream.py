"""Next-tick returns with a stateful GRU: windows follow one another, the hidden state is carried over (truncated BPTT)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

cfg = {
    "instruments": 8,
    "window": 16,
    "windows": 45,
    "hidden": 24,
    "lr_alpha": 2e-3,
    "lr_risk": 5e-3,
    "seed": 23,
}


class TickTape:
    """Mid prices of all instruments, cut into consecutive windows that overlap in one tick."""

    def __init__(self, cfg):
        g = torch.Generator().manual_seed(cfg["seed"])
        ticks = cfg["window"] * cfg["windows"] + 1
        shocks = 0.01 * torch.randn(cfg["instruments"], ticks, generator=g)
        for t in range(1, ticks):
            shocks[:, t] += 0.4 * shocks[:, t - 1]
        self.prices = 50 * torch.exp(shocks.cumsum(1))
        self.prices[3, 443] = 0.0            # feed handler wrote an empty quote
        self.window = cfg["window"]

    def __iter__(self):
        for start in range(0, self.prices.shape[1] - 1, self.window):
            yield self.prices[:, start:start + self.window + 1]


def log_returns(prices):
    return 100 * torch.log(prices).diff(dim=1)


class AlphaModel(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.gru = nn.GRU(2, hidden, batch_first=True)
        self.mean = nn.Linear(hidden, 1)

    def forward(self, returns, state):
        signed_and_size = torch.stack([returns, returns.abs()], -1)
        out, state = self.gru(signed_and_size, state)
        return self.mean(out).squeeze(-1), out, state


class RiskModel(nn.Module):
    """Log-variance on top of the detached features of the alpha model."""

    def __init__(self, hidden):
        super().__init__()
        self.log_var = nn.Sequential(nn.Linear(hidden, 12), nn.Tanh(), nn.Linear(12, 1))

    def forward(self, features):
        return self.log_var(features.detach()).squeeze(-1).clamp(-8, 8)


class Trainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg["seed"])
        self.alpha, self.risk = AlphaModel(cfg["hidden"]), RiskModel(cfg["hidden"])
        self.alpha_optimizer = torch.optim.Adam(self.alpha.parameters(), lr=cfg["lr_alpha"])
        self.risk_optimizer = torch.optim.Adam(self.risk.parameters(), lr=cfg["lr_risk"])
        self.state = torch.zeros(1, cfg["instruments"], cfg["hidden"])

    def step(self, prices):
        returns = log_returns(prices)
        past, future = returns[:, :-1], returns[:, 1:]
        mean, features, state = self.alpha(past, self.state)
        self.state = state.detach()
        log_var = self.risk(features)
        losses = {
            "alpha": F.smooth_l1_loss(mean, future),
            "risk": 0.5 * (log_var + (future - mean.detach()) ** 2 / log_var.exp()).mean(),
        }
        self.alpha_optimizer.zero_grad()
        self.risk_optimizer.zero_grad()
        (losses["alpha"] + losses["risk"]).backward()
        self.alpha_optimizer.step()
        self.risk_optimizer.step()
        return losses

    def weights(self):
        return [*self.alpha.parameters(), *self.risk.parameters()]


def main():
    trainer = Trainer(cfg)
    for i, prices in enumerate(TickTape(cfg), 1):
        losses = trainer.step(prices)
        print(f"window {i} " + " ".join(f"{name} {value.item():.6f}" for name, value in losses.items()))
    print("finite", int(all(p.isfinite().all() for p in trainer.weights())))


if __name__ == "__main__":
    main()
