"""Genuine or forged: banknotes by four wavelet statistics, squared hinge, quasi-Newton steps."""
import torch


def banknotes(n=60):
    g = torch.Generator().manual_seed(40)
    genuine = torch.randn(n, 4, generator=g) * 0.55 + torch.tensor([1.1, 0.7, -0.5, 0.3])
    forged = torch.randn(n, 4, generator=g) * 0.55 - torch.tensor([1.0, 0.8, -0.5, 0.2])
    x = torch.cat([genuine, forged])
    y = torch.cat([torch.ones(n), -torch.ones(n)])
    return x, y


class SecantStepper:
    """Keeps a dense estimate of the inverse curvature and refines it from pairs (step, change of slope)."""

    def __init__(self, params, rate=1.0):
        self.params = list(params)
        size = sum(p.numel() for p in self.params)
        self.inverse = torch.eye(size)
        self.rate = rate
        self.old_slope = None
        self.old_move = None

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def _slope(self):
        return torch.cat([p.grad.reshape(-1) for p in self.params])

    def _refine(self, s, y):
        rho = 1.0 / torch.dot(s, y)
        left = torch.eye(len(s)) - rho * torch.outer(s, y)
        self.inverse = left @ self.inverse @ left.T + rho * torch.outer(s, s)

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        slope = self._slope()
        if self.old_slope is not None:
            self._refine(self.old_move, slope - self.old_slope)
        move = -self.rate * (self.inverse @ slope)
        start = 0
        for p in self.params:
            p += move[start:start + p.numel()].view_as(p)
            start += p.numel()
        self.old_slope, self.old_move = slope, move
        return loss


def main():
    torch.manual_seed(40)
    x, y = banknotes()
    net = torch.nn.Linear(4, 1)
    stepper = SecantStepper(net.parameters(), rate=1.1)

    def closure():
        stepper.zero_grad()
        gap = (1 - y * net(x).squeeze(1)).clamp(min=0)
        loss = gap.square().mean()
        loss.backward()
        return loss

    for k in range(1, 31):
        loss = stepper.step(closure)
        print(f"{k:3d}  squared hinge {loss.item():.7f}")
    print("sum of squares of the weights", sum(p.detach().square().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
