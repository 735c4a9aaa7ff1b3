"""Rock core classes with a margin loss and unit per-example gradients (torch.func).

Each core should have the same say whatever its contrast, so the gradient of each example is scaled
to length one before the average (not clipped as in DP-SGD: scaled).
"""
from functools import partial

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

CLASSES = ("basalt", "gneiss", "shale", "marl")
BANDS, BATCH = 9, 16


def core_box(gen, n):
    label = torch.randint(0, len(CLASSES), (n,), generator=gen)
    centre = torch.eye(len(CLASSES), BANDS) * 1.5
    return centre[label] + 0.9 * torch.randn(n, BANDS, generator=gen), label


class CoreNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(BANDS, 20)
        self.head = nn.Linear(20, len(CLASSES))

    def forward(self, x):
        return self.head(torch.tanh(self.trunk(x)))


def margin(model, params, x, label):
    """Multi-class hinge: zero as soon as the right class leads by one."""
    logits = functional_call(model, params, (x[None],))[0]
    right = logits.gather(0, label[None])
    gap = 1.0 - right + logits
    own = torch.arange(len(CLASSES)) == label
    return torch.relu(gap.masked_fill(own, 0.0)).sum()


def per_example(model, params, x, label):
    fn = partial(margin, model)
    return vmap(grad_and_value(fn), in_dims=(None, 0, 0))(params, x, label)


def length(grads):
    return torch.stack([g.flatten(1).square().sum(1) for g in grads.values()]).sum(0).sqrt()


def unit_mean(grads):
    ln = length(grads)
    for name, g in grads.items():
        each = g / ln.view(-1, *[1] * (g.dim() - 1))
        yield name, each.mean(0)


def main():
    torch.manual_seed(41)
    gen = torch.Generator().manual_seed(5)
    model = CoreNet()
    named = dict(model.named_parameters())
    opt = torch.optim.SGD(named.values(), lr=0.065, momentum=0.5)
    for step in range(1, 30):
        x, label = core_box(gen, BATCH)
        if step == 24:               # tie-in with the reference tray of the museum, very clean cores
            x = torch.eye(len(CLASSES), BANDS)[label] * 8.0
        params = {k: p.detach() for k, p in named.items()}
        grads, losses = per_example(model, params, x, label)
        for name, g in unit_mean(grads):
            named[name].grad = g
        opt.step()
        print(f"tray {step:02d} hinge {losses.mean().item():.6f}")
    print(f"all weights {sum(p.double().sum().item() for p in model.parameters()):.8f}")


if __name__ == "__main__":
    main()
