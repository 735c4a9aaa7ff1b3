import torch
import torch.nn as nn


class SoftExcess(torch.autograd.Function):
    """softplus with the usual shift in the forward pass, so that large claims are exact"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.clamp(x, min=0) + torch.log1p(torch.exp(-x.abs()))

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        e = torch.exp(x)
        return grad * (e / (1 + e))


class Layer(nn.Module):
    """share * ((claim - attachment)+ - (claim - exhaustion)+), corners rounded by `width`"""

    def __init__(self, attachment, size, width=0.25):
        super().__init__()
        self.attachment = nn.Parameter(torch.tensor(attachment))
        self.log_size = nn.Parameter(torch.tensor(size).log())
        self.share = nn.Parameter(torch.tensor(0.5))
        self.width = width

    def forward(self, claim):
        lower = SoftExcess.apply((claim - self.attachment) / self.width)
        upper = SoftExcess.apply((claim - self.attachment - self.log_size.exp()) / self.width)
        return self.share * self.width * (lower - upper)


class Programme(nn.Module):
    def __init__(self):
        super().__init__()
        self.working = Layer(1.0, 1.0)
        self.middle = Layer(3.0, 2.0)
        self.cat_layer = Layer(7.0, 3.0)
        self.reinstatement = nn.Parameter(torch.tensor(0.1))

    def forward(self, claim):
        ceded = self.working(claim) + self.middle(claim) + self.cat_layer(claim)
        return ceded * (1 - self.reinstatement)


def true_recovery(claim):
    def xs(a, l, s):
        return s * (claim - a).clamp(min=0).clamp(max=l)
    return xs(1.5, 1.5, 0.8) + xs(3.0, 3.0, 0.9) + xs(6.0, 4.0, 0.95)


def claims_by_quarter(quarters, per_quarter, gen):
    """claims in millions; lognormal, with the odd windstorm year in the file"""
    book = []
    for q in range(quarters):
        c = torch.exp(0.5 + 0.7 * torch.randn(per_quarter, generator=gen))
        c = c.clamp(max=12.0)
        if q == 12:
            c[17] = 31.4
        if q == 26:
            c[5], c[40] = 26.2, 44.9
        book.append(c)
    return book


torch.manual_seed(99)
gen = torch.Generator().manual_seed(2005)
programme = Programme()
optim = torch.optim.Adam([
    {"params": [p for n, p in programme.named_parameters() if n.endswith("share")], "lr": 0.03},
    {"params": [p for n, p in programme.named_parameters() if not n.endswith("share")], "lr": 0.05},
])
sched = torch.optim.lr_scheduler.ExponentialLR(optim, 0.97)

for quarter, claim in enumerate(claims_by_quarter(36, 64, gen), start=1):
    optim.zero_grad()
    paid = true_recovery(claim)
    loss = nn.functional.l1_loss(programme(claim), paid)
    loss.backward()
    optim.step()
    sched.step()
    print("quarter", quarter, "largest claim", round(claim.max().item(), 2), "mean error", round(loss.item(), 5))

print("absolute sum of the treaty terms", round(sum(p.abs().sum().item() for p in programme.parameters()), 5))
