# Frost alarms for orchards from the readings of neighbouring stations.
# The optimizer is my own Shampoo. Roots come from the coupled Newton iteration, no eigenvectors needed.
import torch
from torch.optim import Optimizer


def inverse_root(mat, p=4, rounds=40):
    n = mat.shape[0]
    eye = torch.eye(n)
    mat = mat + 1e-4 * mat.diagonal().mean() * eye
    z = (1 + p) / (2 * mat.abs().max())
    root = eye * z ** (1 / p)
    m = mat * z
    for _ in range(rounds):
        step = ((p + 1) * eye - m) / p
        root = root @ step
        m = torch.linalg.matrix_power(step, p) @ m
    return root


class CoupledShampoo(Optimizer):
    def __init__(self, params, lr=0.05, momentum=0.9, start=12, every=4):
        super().__init__(params, dict(lr=lr, momentum=momentum, start=start, every=every))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["t"] = 0
                    state["avg"] = torch.zeros_like(p)
                    if p.ndim == 2:
                        state["left"], state["right"] = (torch.zeros(k, k) for k in p.shape)
                state["t"] += 1
                g, t = p.grad, state["t"]
                if p.ndim == 2:
                    state["left"] += g @ g.t()
                    state["right"] += g.t() @ g
                    if t >= group["start"]:
                        if "roots" not in state or t % group["every"] == 0:
                            state["roots"] = inverse_root(state["left"]), inverse_root(state["right"])
                        shaped = state["roots"][0] @ g @ state["roots"][1]
                        g = shaped * (g.norm() / (shaped.norm() + 1e-12))
                state["avg"].mul_(group["momentum"]).add_(g)
                p.sub_(group["lr"] * state["avg"])


def evenings(gen, n=48, stations=12):
    """Anomalies at the stations at six in the evening: one air mass, small differences between hollows."""
    air = torch.randn(n, 1, generator=gen)
    local = 0.35 * torch.randn(n, stations, generator=gen)
    x = air + local
    frost = (1.2 * air.squeeze(1) + local[:, :3].sum(1) + 0.3 * torch.randn(n, generator=gen) < -0.5).float()
    return x, frost


def main():
    torch.manual_seed(6)
    gen = torch.Generator().manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(12, 10), torch.nn.Tanh(), torch.nn.Linear(10, 1))
    optimizer = CoupledShampoo(model.parameters())
    for night in range(1, 33):
        x, frost = evenings(gen)
        logits = model(x).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, frost)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits = ((logits > 0) == (frost > 0)).float().mean().item()
        print(f"night {night:2d}   loss {loss.item():.4f}   right {hits:.2f}")
    print("weights, sum of squares:", sum(p.detach().square().sum().item() for p in model.parameters()))


main()
