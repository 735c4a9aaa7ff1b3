"""Landmark regression on X-rays with a stochastic Polak-Ribiere conjugate gradient optimizer."""
import torch
from torch import nn
from torch.optim import Optimizer

HYPER = {"lr": 0.01, "series": 36, "frames": 10, "landmarks": 5, "size": 10, "seed": 19}


class ConjugateGradient(Optimizer):
    """d_t = -g_t + max(beta_t, 0) d_{t-1},  beta_t = <g_t, g_t - g_{t-1}> / <g_{t-1}, g_{t-1}>."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            flat = torch.cat([p.grad.reshape(-1) for p in params])
            state = self.state[params[0]]
            if "direction" not in state:
                direction = -flat
            else:
                previous = state["gradient"]
                beta = torch.dot(flat, flat - previous) / torch.dot(previous, previous)
                direction = beta.clamp(min=0) * state["direction"] - flat
            state["gradient"], state["direction"] = flat, direction
            start = 0
            for p in params:
                p.add_(direction[start:start + p.numel()].view_as(p), alpha=group["lr"])
                start += p.numel()


class FluoroscopySeries:
    """Series of frames; a landmark outside the collimated field has visibility 0."""

    def __init__(self, hyper):
        g = torch.Generator().manual_seed(hyper["seed"])
        n, k, s = hyper["frames"], hyper["landmarks"], hyper["size"]
        grid = torch.stack(torch.meshgrid(torch.linspace(0, 1, s), torch.linspace(0, 1, s), indexing="ij"), -1)
        self.series = []
        for i in range(hyper["series"]):
            landmarks = torch.rand(n, k, 2, generator=g)
            visible = (torch.rand(n, k, generator=g) < 0.8).float()
            if i == 23:                               # shutter test before the examination
                visible.zero_()
            distance = (grid[None, None] - landmarks[:, :, None, None]).pow(2).sum(-1)
            spots = torch.exp(-distance / 0.01) * visible[..., None, None]
            image = (spots * torch.linspace(0.5, 1.5, k)[None, :, None, None]).sum(1)
            self.series.append((image, landmarks, visible))

    def __iter__(self):
        return iter(self.series)


class LandmarkNet(nn.Module):
    def __init__(self, hyper):
        super().__init__()
        self.k = hyper["landmarks"]
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(hyper["size"] ** 2, 48), nn.Tanh(),
                                 nn.Linear(48, 2 * self.k))

    def forward(self, image):
        return torch.sigmoid(self.net(image)).view(-1, self.k, 2)


wing = lambda error, w=0.1, eps=0.5: torch.where(error < w, w * torch.log1p(error / eps), error - w + w * 0.1823)


def landmark_loss(prediction, landmarks, visible):
    error = (prediction - landmarks).abs().sum(-1)
    return (wing(error) * visible).sum() / (visible.sum() + 1)


def run(hyper):
    torch.manual_seed(hyper["seed"])
    model = LandmarkNet(hyper)
    optimizer = ConjugateGradient(model.parameters(), lr=hyper["lr"])
    for step, (image, landmarks, visible) in enumerate(FluoroscopySeries(hyper), start=1):
        optimizer.zero_grad()
        loss = landmark_loss(model(image), landmarks, visible)
        loss.backward()
        optimizer.step()
        print(f"series {step} wing {loss.item():.6f} visible {int(visible.sum())}")
    return model


if __name__ == "__main__":
    trained = run(HYPER)
    print("finite", int(all(p.isfinite().all() for p in trained.parameters())))
