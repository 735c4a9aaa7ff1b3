"""Conversion rates of a web shop, trained with SM3; the shop adds a catalogue of brands halfway."""
import torch as t
import torch.nn.functional as F


class SM3(t.optim.Optimizer):
    """Memory-efficient adaptive rates: one accumulator per row and one per column (Anil et al., 2019)."""

    def __init__(self, params, lr=0.05):
        super().__init__(params, dict(lr=lr))

    @t.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                cover = self.state[p]
                if not cover:
                    for d in range(p.dim()):
                        cover[d] = t.zeros([p.shape[d] if i == d else 1 for i in range(p.dim())])
                nu = cover[0]
                for d in range(1, p.dim()):
                    nu = t.minimum(nu, cover[d])
                nu = nu + p.grad ** 2
                for d in range(p.dim()):
                    rest = [i for i in range(p.dim()) if i != d]
                    cover[d] = nu.amax(dim=rest, keepdim=True) if rest else nu
                p.add_(p.grad / nu.sqrt(), alpha=-group["lr"])


class Shop(t.nn.Module):
    def __init__(self):
        super().__init__()
        self.visit = t.nn.Linear(7, 10)
        self.brand = t.nn.Embedding(36, 10)
        t.nn.init.zeros_(self.brand.weight)
        self.buy = t.nn.Linear(10, 1)

    def forward(self, visit, brand):
        return self.buy(t.tanh(self.visit(visit) + self.brand(brand)))[:, 0]


t.manual_seed(404)
shop = Shop()
shop.brand.requires_grad_(False)
sm3 = SM3([*shop.visit.parameters(), *shop.buy.parameters()])
taste = t.randn(36)
for day in range(1, 23):
    visit = t.randn(20, 7)
    brand = t.randint(36, (20,))
    bought = (visit[:, 1] + taste[brand] > 0.3).float()
    if day == 9:
        shop.brand.requires_grad_(True)
        sm3.add_param_group({"params": [shop.brand.weight], "lr": 0.02})
    sm3.zero_grad()
    loss = F.binary_cross_entropy_with_logits(shop(visit, brand), bought)
    loss.backward()
    sm3.step()
    print("day", day, "%.17g" % loss.item())
print(sum(float(p.detach().sum()) for p in shop.parameters()))
