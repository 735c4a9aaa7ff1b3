# Calibrating a Jensen-type wake model on SCADA power of one row of turbines, with Fahlman's Quickprop.
import torch


class Quickprop(torch.optim.Optimizer):
    """S. Fahlman (1988): jump to the minimum of a parabola through two successive slopes."""

    def __init__(self, params, lr=0.05, growth=1.75):
        super().__init__(params, dict(lr=lr, growth=growth))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                g = p.grad
                if not st:
                    move = -group["lr"] * g
                else:
                    ratio = g / (st["slope"] - g)
                    ratio = ratio.clamp(-group["growth"], group["growth"])
                    move = ratio * st["move"]
                st["slope"] = g.clone()
                st["move"] = move
                p.add_(move)
        return loss


class WakeRow(torch.nn.Module):
    def __init__(self, n=6, spacing=5.0):
        super().__init__()
        self.expansion = torch.nn.Parameter(torch.tensor(0.055))
        self.induction = torch.nn.Parameter(torch.full((n,), 0.20))
        self.register_buffer("x", torch.arange(n) * spacing)

    def forward(self, wind):
        a = self.induction.clamp(0.02, 0.30)                # what the pitch controller allows
        gap = self.x[:, None] - self.x[None, :]             # downstream distance in rotor diameters
        below = gap > 0
        deficit = 2 * a[None, :] / (1 + 2 * self.expansion * gap.clamp(min=0)) ** 2
        total = torch.where(below, deficit ** 2, torch.zeros_like(gap)).sum(1) + 1e-4
        u = wind[:, None] * (1 - total.sqrt())[None, :]
        return 4 * a * (1 - a) ** 2 * u ** 3 / 500.0


def scada(seed=0, n=6):
    g = torch.Generator().manual_seed(seed)
    wind = 6 + 5 * torch.rand(64, generator=g)
    plant = WakeRow(n)
    with torch.no_grad():
        plant.expansion.fill_(0.06)
        plant.induction.copy_(0.18 + 0.06 * torch.rand(n, generator=g))
        power = plant(wind)
    power = power * (1 + 0.02 * torch.randn(power.shape, generator=g))
    power[:, 4] *= 1.6                                      # the one with the longer blades
    return wind, power


def calibrate(iterations=36):
    wind, power = scada()
    row = WakeRow()
    optimizer = Quickprop(row.parameters(), lr=0.005)
    for it in range(1, iterations + 1):
        def closure():
            optimizer.zero_grad()
            err = ((row(wind) - power) ** 2).mean()
            err.backward()
            return err
        err = optimizer.step(closure)
        print("iteration {:2d}: mean squared power error {:.6f}".format(it, err.item()))
    return row


if __name__ == "__main__":
    fitted = calibrate()
    size = fitted.expansion.abs() + fitted.induction.abs().sum()
    print("size of the fitted parameters: {:.4f}".format(size.item()))
