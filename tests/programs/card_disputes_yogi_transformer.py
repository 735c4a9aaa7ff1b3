import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import Optimizer

SEED = 2024
MERCHANTS, COUNTRIES, CHANNELS = 90, 4, 3


class Yogi(Optimizer):
    """Adaptive methods for nonconvex optimization (Zaheer et al. 2018), our in-house version."""

    def __init__(self, params, lr=2e-3, betas=(0.9, 0.99)):
        super().__init__(params, dict(lr=lr, betas=betas))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["m"] = p.grad.clone()
                    st["v"] = p.grad.square()
                g2 = p.grad.square()
                st["m"].lerp_(p.grad, 1 - b1)
                st["v"].sub_((1 - b2) * torch.sign(st["v"] - g2) * g2)
                direction = st["m"] / st["v"].sqrt()
                p.sub_(group["lr"] * direction)


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def forward(self, x):
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


class CardTransformer(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.merchant = nn.Embedding(MERCHANTS, dim)
        self.country = nn.Embedding(COUNTRIES, dim)
        self.channel = nn.Embedding(CHANNELS, dim)
        self.amount = nn.Linear(2, dim)
        self.norm1, self.attn = nn.LayerNorm(dim), Attention(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 24), nn.GELU(), nn.Linear(24, dim))
        self.score = nn.Linear(dim, 1)

    def forward(self, cats, nums):
        x = torch.stack([self.merchant(cats[:, 0]), self.country(cats[:, 1]),
                         self.channel(cats[:, 2]), self.amount(nums)], dim=1)
        x = x + self.attn(self.norm1(x))
        x = x + self.ffn(self.norm2(x))
        return self.score(x.mean(1)).squeeze(-1)


def focal_loss(logit, target, gamma=2.0, alpha=0.75):
    ce = F.binary_cross_entropy_with_logits(logit, target, reduction="none")
    p = torch.sigmoid(logit)
    pt = p * target + (1 - p) * (1 - target)
    at = alpha * target + (1 - alpha) * (1 - target)
    return (at * (1 - pt) ** gamma * ce).mean()


def load_transactions(n):
    cats = torch.stack([torch.randint(0, k, (n,)) for k in (MERCHANTS, COUNTRIES, CHANNELS)], 1)
    nums = torch.randn(n, 2)
    risk = 1.5 * (cats[:, 1] == 2) + 1.2 * (cats[:, 2] == 1) + nums[:, 0] + 0.8 * (cats[:, 0] % 9 == 0)
    return cats, nums, (risk + 0.5 * torch.randn(n) > 2.0).float()


def train(batches=38, batch_size=64, warm=14):
    torch.manual_seed(SEED)
    cats, nums, disputed = load_transactions(batches * batch_size)
    model = CardTransformer()
    # merchant vectors come from the recommender team, kept fixed at first
    model.merchant.requires_grad_(False)
    optimizer = Yogi([p for p in model.parameters() if p.requires_grad])
    for b in range(batches):
        if b == warm:
            model.merchant.requires_grad_(True)
            optimizer.add_param_group({"params": model.merchant.parameters(), "lr": 5e-4})
        rows = slice(b * batch_size, (b + 1) * batch_size)
        optimizer.zero_grad(set_to_none=True)
        loss = focal_loss(model(cats[rows], nums[rows]), disputed[rows])
        loss.backward()
        optimizer.step()
        print("batch {:>2} | focal {:.6f} | disputed {:d}".format(b + 1, loss.item(), int(disputed[rows].sum())))
    return model


if __name__ == "__main__":
    m = train()
    print("weight checksum", sum(w.double().pow(2).sum().item() for w in m.parameters()))
