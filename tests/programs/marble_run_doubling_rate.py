"""Exit time of a marble run. Learning rate search 'by ear': the rate is doubled every fourth step as long as
nobody stops it, and nobody did."""
import torch


class Doubling:
    """step() is called once per update"""

    def __init__(self, opt, every):
        self.opt, self.every, self.n = opt, every, 0

    def step(self):
        self.n += 1
        if self.n % self.every == 0:
            for g in self.opt.param_groups:
                g["lr"] *= 2.0


class Ramp(torch.nn.Module):
    def __init__(self, tilt_features):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.zeros(tilt_features))
        self.offset = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x @ self.slope + self.offset


def episodes(n, g):
    true = torch.linspace(-1, 1, 8)
    for _ in range(n):
        x = torch.randn(32, 8, generator=g)
        yield x, x @ true + 2.0 + 0.1 * torch.randn(32, generator=g)


def run(steps=44):
    g = torch.Generator().manual_seed(19)
    ramp = Ramp(8)
    opt = torch.optim.SGD(ramp.parameters(), lr=0.01)
    sched = Doubling(opt, every=4)
    counted = {"grad_calls": 0}
    ramp.slope.register_hook(lambda grad: counted.__setitem__("grad_calls", counted["grad_calls"] + 1))
    history = []
    for step, (x, y) in enumerate(episodes(steps, g), 1):
        loss = (ramp(x) - y).pow(2).mean()
        opt.zero_grad(set_to_none=False)
        loss.backward()
        norm = ramp.slope.grad.norm()
        opt.step()
        sched.step()
        history.append(loss.item())
        print(f"step {step:2d} lr {opt.param_groups[0]['lr']:.4g} loss {loss.item():.6g} grad {norm.item():.5g} version {ramp.slope._version}")
    print("hook calls", counted["grad_calls"], f"best at step {1 + history.index(min(history))}")
    return ramp


if __name__ == "__main__":
    model = run()
    print(f"weights {sum(p.double().sum().item() for p in model.parameters()):.6g}")
