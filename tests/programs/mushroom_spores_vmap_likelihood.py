"""Per-sample gradients with torch.func for a spore size model (gamma likelihood), clipped per sample and averaged,
then handed to a SGD subclass that asks for a closure. Lengths in micrometres, rounded to 0.1 by the microscope software."""
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap


class ClosureSGD(torch.optim.SGD):
    """Fails without closure: the closure is where the per-sample gradients get written."""

    def step(self, closure=None):
        if closure is None:
            raise TypeError("closure wanted")
        value = closure()
        super().step()
        return value


class GammaHead(nn.Module):
    def __init__(self, inputs=5):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 12), nn.Tanh())
        self.shape = nn.Linear(12, 1)
        self.rate = nn.Linear(12, 1)

    def forward(self, x):
        h = self.body(x)
        return nn.functional.softplus(self.shape(h)) + 0.5, nn.functional.softplus(self.rate(h)) + 0.05


def microscope(slides, seed=33):
    g = torch.Generator().manual_seed(seed)
    for slide in range(slides):
        x = torch.randn(20, 5, generator=g)
        size = torch.exp(0.4 * x[:, 0] - 0.2 * x[:, 1] + 0.2 * torch.randn(20, generator=g) + 0.7)
        if slide == 13:
            size[6] = 0.04            # a speck of dust, not a spore
        yield x, torch.round(size * 10) / 10


def per_sample_loss(params, net, x, size):
    shape, rate = functional_call(net, params, (x.unsqueeze(0),))
    shape, rate = shape.squeeze(), rate.squeeze()
    log_size = size.log()
    return -(shape * torch.log(rate) - torch.lgamma(shape) + (shape - 1) * log_size - rate * size)


def clip_rows(grads, bound):
    sq = sum(g.flatten(1).square().sum(1) for g in grads.values())
    factor = (bound / (sq.sqrt() + 1e-6)).clamp(max=1.0)
    return {k: torch.einsum("n,n...->...", factor, g) / len(factor) for k, g in grads.items()}


def main():
    torch.manual_seed(3)
    net = GammaHead()
    opt = ClosureSGD(net.parameters(), lr=0.2, momentum=0.5)
    per_row = vmap(grad_and_value(per_sample_loss), in_dims=(None, None, 0, 0))

    for slide, (x, size) in enumerate(microscope(32), 1):
        def closure():
            frozen = {k: p.detach() for k, p in net.named_parameters()}
            grads, losses = per_row(frozen, net, x, size)
            for name, g in clip_rows(grads, bound=2.0).items():
                net.get_parameter(name).grad = g
            return losses.mean()

        nll = opt.step(closure)
        if slide % 2 == 1:
            print(f"slide {slide:02d}: nll {nll.item():.6f}")
    total = sum(p.detach().square().sum().item() for p in net.parameters())
    print(f"32 slides, squared weights {total:.6f}")


if __name__ == "__main__":
    main()
