"""A plucked guitar string, u_tt = c^2 u_xx, as a physics-informed network.

Time is cut into windows; a window only counts as far as the earlier ones are solved already
(weight exp(-strictness * residual of all earlier windows)).
"""
import torch
from torch.func import functional_call, hessian, vmap

C, WINDOWS, PER = 1.0, 6, 12


class String(torch.nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.inner = torch.nn.Linear(2, width)
        self.mid = torch.nn.Linear(width, width)
        self.out = torch.nn.Linear(width, 1)

    def forward(self, xt):
        x, t = xt[..., 0], xt[..., 1]
        h = torch.tanh(self.mid(torch.tanh(self.inner(xt))))
        start = torch.sin(torch.pi * x) + 0.5 * torch.sin(2 * torch.pi * x)
        return start + t ** 2 * x * (1 - x) * self.out(h).squeeze(-1)


def window_residuals(net, points):
    weights = dict(net.named_parameters())

    def u(xt):
        return functional_call(net, weights, (xt,))

    curv = vmap(hessian(u))(points.reshape(-1, 2))
    r = curv[:, 1, 1] - C ** 2 * curv[:, 0, 0]
    return r.square().reshape(WINDOWS, PER).mean(dim=1)


def causal_loss(per_window, strictness):
    earlier = per_window.detach().cumsum(0) - per_window.detach()
    gate = torch.exp(-strictness * earlier)
    return (gate * per_window).mean(), gate


def points_for(gen):
    x = torch.rand(WINDOWS, PER, generator=gen)
    t = (torch.arange(WINDOWS)[:, None] + torch.rand(WINDOWS, PER, generator=gen)) / WINDOWS
    return torch.stack([x, t], dim=-1)


def solve():
    torch.manual_seed(440)
    gen = torch.Generator().manual_seed(440)
    net = String()
    best = torch.full((WINDOWS,), float("inf"))
    count = 0
    for strictness in (10.0, 0.1, 0.001):
        opt = torch.optim.Adam(net.parameters(), lr=5e-3)
        for _ in range(9):
            opt.zero_grad()
            per_window = window_residuals(net, points_for(gen))
            loss, gate = causal_loss(per_window, strictness)
            loss.backward()
            opt.step()
            count += 1
            best = torch.minimum(best, per_window.detach())
            print(f"{count:2d} strict {strictness:<6} loss {loss.item():.6e} open windows {int((gate > 0).sum())}")
    fixed = points_for(gen)
    polish = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4, history_size=8, line_search_fn="strong_wolfe")

    def closure():
        polish.zero_grad()
        loss = window_residuals(net, fixed).mean()
        loss.backward()
        return loss

    for _ in range(5):
        count += 1
        print(f"{count:2d} polish loss {polish.step(closure).item():.6e}")
    print("best residuals", " ".join(f"{b:.3f}" for b in best.tolist()))
    print("weights, sum of squares", sum(p.detach().square().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    solve()
