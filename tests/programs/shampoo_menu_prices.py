import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import Optimizer


class Shampoo(Optimizer):
    """Gupta, Koren, Singer 2018, minimal version for 2-D weights.

    1-D parameters get plain Adagrad. The first steps are diagonal (grafting),
    until the statistics have settled.
    """

    def __init__(self, params, lr=0.1, beta=0.95, start=6):
        super().__init__(params, dict(lr=lr, beta=beta, start=start))

    @staticmethod
    def _root(mat):
        lam, q = torch.linalg.eigh(mat)
        return (q * lam.pow(-0.25)) @ q.t()

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                g, st = p.grad, self.state[p]
                if not st:
                    st["t"] = 0
                    st["diag"] = torch.zeros_like(p)
                    if p.dim() == 2:
                        st["left"] = torch.zeros(p.size(0), p.size(0))
                        st["right"] = torch.zeros(p.size(1), p.size(1))
                st["t"] += 1
                st["diag"].add_(g * g)
                direction = g / (st["diag"].sqrt() + 1e-8)
                if p.dim() == 2:
                    b = group["beta"]
                    st["left"].mul_(b).add_(g @ g.t(), alpha=1 - b)
                    st["right"].mul_(b).add_(g.t() @ g, alpha=1 - b)
                    if st["t"] >= group["start"]:
                        pre = self._root(st["left"]) @ g @ self._root(st["right"])
                        direction = pre * (direction.norm() / pre.norm())
                p.add_(direction, alpha=-group["lr"])


CUISINES = ["thai", "pizza", "sushi", "burger", "vegan", "bbq", "fondue"]


def load_menus(n=480):
    g = torch.Generator().manual_seed(77)
    share = torch.tensor([5.0, 7.0, 3.0, 8.0, 2.0, 2.0, 0.0])
    kind = torch.multinomial(share, n, replacement=True, generator=g)
    extra = torch.randn(n, 5, generator=g)
    base = torch.tensor([11.0, 9.0, 18.0, 10.0, 12.0, 15.0, 24.0])
    price = base[kind] + extra @ torch.tensor([1.0, -0.5, 2.0, 0.3, 0.0])
    price = price + 0.5 * torch.randn(n, generator=g)
    x = torch.cat([F.one_hot(kind, len(CUISINES)).float(), extra], dim=1)
    return x, (price - 12.0) / 4.0


torch.manual_seed(0)
x, y = load_menus()
net = nn.Sequential(nn.Linear(x.size(1), 10), nn.Tanh(), nn.Linear(10, 1))
opt = Shampoo(net.parameters(), lr=0.05)

for it in range(20):
    rows = torch.arange(it * 24, it * 24 + 24)
    out = net(x[rows]).squeeze(1)
    loss = F.smooth_l1_loss(out, y[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"[{it + 1:02d}] huber={loss.item():.4f}")

print("weights", float(sum((p.detach() ** 2).sum() for p in net.parameters())))
