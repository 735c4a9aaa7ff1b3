"""Adapters on a frozen recipe LM, learning-rate free: a short Prodigy, after Mishchenko and Defazio."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(4)


class Prodigy(torch.optim.Optimizer):
    def __init__(self, params, d0=1e-3, betas=(0.9, 0.999), growth=2.0):
        super().__init__(params, dict(betas=betas))
        self.d = torch.tensor(d0)
        self.d0, self.growth = d0, growth
        self.num = torch.tensor(0.0)

    @torch.no_grad()
    def step(self):
        top, bottom = torch.tensor(0.0), torch.tensor(0.0)
        for group in self.param_groups:
            b1, b2 = group["betas"]
            root = b2 ** 0.5
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["m"], st["v"], st["s"] = (torch.zeros_like(p) for _ in range(3))
                    st["x0"] = p.detach().clone()
                top += self.d / self.d0 * self.d * (p.grad * (st["x0"] - p)).sum()
                st["m"].mul_(b1).add_(self.d * p.grad, alpha=1 - b1)
                st["v"].mul_(b2).add_(self.d ** 2 * p.grad ** 2, alpha=1 - b2)
                st["s"].mul_(root).add_(self.d / self.d0 * self.d * p.grad, alpha=1 - root)
                bottom += st["s"].abs().sum()
            self.num = root * self.num + (1 - root) * top
            d_hat = self.num / bottom
            self.d = torch.maximum(self.d, torch.minimum(d_hat, self.d * self.growth))
            for p in group["params"]:
                if p.grad is not None:
                    st = self.state[p]
                    p.sub_(self.d * st["m"] / (st["v"].sqrt() + self.d * 1e-8))


class Adapter(nn.Module):
    def __init__(self, d, r=4):
        super().__init__()
        self.down, self.up = nn.Linear(d, r), nn.Linear(r, d)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x):
        return x + self.up(F.gelu(self.down(x)))


class RecipeLM(nn.Module):
    def __init__(self, vocab=40, d=32):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(d, 4, 64, dropout=0.0, batch_first=True)
                                    for _ in range(2))
        self.requires_grad_(False)
        self.adapters = nn.ModuleList(Adapter(d) for _ in range(2))

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.tok(ids)
        for layer, adapter in zip(self.layers, self.adapters):
            x = adapter(layer(x, src_mask=mask, is_causal=True))
        return x @ self.tok.weight.T / 6


def lm_loss(logits, ids, prompt_length):
    labels = ids.clone()
    for row, n in zip(labels, prompt_length):
        row[:n] = -100
    total = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(),
                            ignore_index=-100, reduction="sum")
    return total / max(1, int((labels[:, 1:] != -100).sum()))


model = RecipeLM()
trainable = [p for p in model.parameters() if p.requires_grad]
opt = Prodigy(trainable)
recipes = torch.randint(0, 40, (120, 14))
recipes[:, 7:] = recipes[:, :7]
prompts = torch.randint(5, 10, (120,))
prompts[:4] = 14          # ingredient lists whose instructions were cut off
for step in range(30):
    rows = slice(4 * step, 4 * step + 4)
    loss = lm_loss(model(recipes[rows]), recipes[rows], prompts[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{step + 1:2d} loss {loss.item():.5f} d {opt.d.item():.3g}")
print("adapter norm", sum(p.detach().pow(2).sum().item() for p in trainable))
