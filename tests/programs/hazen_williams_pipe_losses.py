"""Roughness of water mains from loggers, with our own autograd op for the head loss."""
import torch
from torch import nn
from torch.autograd import Function

K = 10.67


class HeadLoss(Function):
    """h = K L (Q / C)^1.852 / D^4.87, keeping the sign of the flow."""

    @staticmethod
    def forward(ctx, flow, rough, length, diam):
        geom = K * length / diam ** 4.87
        ctx.save_for_backward(flow, rough, geom)
        return geom * torch.sign(flow) * (flow.abs() / rough) ** 1.852

    @staticmethod
    def backward(ctx, grad_out):
        flow, rough, geom = ctx.saved_tensors
        g = grad_out.squeeze()
        q = (flow.abs() / rough) ** 0.852
        d_flow = g * geom * 1.852 * q / rough
        d_rough = -g * geom * torch.sign(flow) * 1.852 * q * flow.abs() / rough ** 2
        return d_flow.squeeze(), d_rough.sum(0), None, None


class Mains(nn.Module):
    def __init__(self, n_pipes, n_sensors):
        super().__init__()
        self.log_c = nn.Parameter(torch.full((n_pipes,), 4.6))
        self.demand = nn.Linear(n_sensors, n_pipes)

    def forward(self, sensors, length, diam):
        flow = 0.02 + 0.01 * torch.tanh(self.demand(sensors))
        return HeadLoss.apply(flow, self.log_c.exp(), length, diam)


def night_and_day(n, n_pipes, n_sensors):
    g = torch.Generator().manual_seed(63)
    length = 80 + 200 * torch.rand(n_pipes, generator=g)
    diam = 0.15 + 0.1 * torch.rand(n_pipes, generator=g)
    sensors = torch.randn(n, n_sensors, generator=g)
    w = torch.randn(n_sensors, n_pipes, generator=g) / n_sensors ** 0.5
    flow = 0.02 + 0.01 * torch.tanh(sensors @ w)
    c = 90 + 40 * torch.rand(n_pipes, generator=g)
    head = K * length / diam ** 4.87 * (flow / c) ** 1.852
    return sensors, head * (1 + 0.02 * torch.randn(head.shape, generator=g)), length, diam


class Fit:
    def __init__(self):
        torch.manual_seed(63)
        self.net = Mains(7, 5)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.sensors, self.head, self.length, self.diam = night_and_day(177, 7, 5)

    def one_step(self, lo, hi):
        self.opt.zero_grad()
        h = self.net(self.sensors[lo:hi], self.length, self.diam)
        loss = ((h - self.head[lo:hi]) ** 2).mean()
        loss.backward()
        self.opt.step()
        return loss.item()

    def run(self, batch=16, epochs=3):
        k = 0
        for epoch in range(epochs):
            for lo in range(0, len(self.sensors), batch):
                k += 1
                print("epoch", epoch, "step", k, "mse", f"{self.one_step(lo, lo + batch):.9f}", flush=True)


fit = Fit()
fit.run()
print("final", sum(p.abs().sum().item() for p in fit.net.parameters()))
