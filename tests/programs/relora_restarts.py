"""ReLoRA by hand: low-rank updates of a frozen GPT are merged every so often, and Adam starts over."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRALinear(nn.Module):
    def __init__(self, cin, cout, rank=4, alpha=8.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cout, cin) * cin ** -0.5, requires_grad=False)
        self.a = nn.Parameter(torch.randn(rank, cin) * cin ** -0.5)
        self.b = nn.Parameter(torch.zeros(cout, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return F.linear(x, self.weight) + self.scale * F.linear(F.linear(x, self.a), self.b)

    @torch.no_grad()
    def merge(self):
        self.weight += self.scale * self.b @ self.a
        nn.init.normal_(self.a, std=self.a.shape[1] ** -0.5)
        nn.init.zeros_(self.b)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = LoRALinear(dim, 3 * dim), LoRALinear(dim, dim)
        self.fc1, self.fc2 = LoRALinear(dim, 4 * dim), LoRALinear(4 * dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(self.ln1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, vocab=40, dim=32, heads=4, layers=2, block=24):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(block, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[:ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


class RestartedAdam(torch.optim.Optimizer):
    """Adam that counts from its last restart. The count is the business of whoever restarts it."""

    def __init__(self, params, lr, betas=(0.9, 0.95), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, t=1))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            t = torch.tensor(float(group["t"]))
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                m, v = state["m"].lerp_(p.grad, 1 - b1), state["v"].lerp_(p.grad.square(), 1 - b2)
                m_hat, v_hat = m / (1 - b1 ** t), v / (1 - b2 ** t)
                p.sub_(group["lr"] * m_hat / (v_hat.sqrt() + group["eps"]))

    def restart(self):
        for state in self.state.values():
            state["m"].zero_()
            state["v"].zero_()


class ReLoRA:
    def __init__(self, model, every, lr):
        self.model, self.every, self.last = model, every, 0
        self.opt = RestartedAdam([p for p in model.parameters() if p.requires_grad], lr=lr)

    def before(self, step):
        if step > 1 and step % self.every == 1:
            for m in self.model.modules():
                if isinstance(m, LoRALinear):
                    m.merge()
            self.opt.restart()
            self.last = step
        for group in self.opt.param_groups:
            group["t"] = step - self.last

    def train(self, batches):
        for step, ids in enumerate(batches, 1):
            self.before(step)
            loss = F.cross_entropy(self.model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            print(f"step {step} merged {self.last} loss {loss.item():.5f}")


def rows(steps, seed):
    gen = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        start, stride = torch.randint(40, (16, 1), generator=gen), torch.randint(1, 4, (16, 1), generator=gen)
        yield (start + stride * torch.arange(25)) % 40


torch.manual_seed(4)
model = GPT()
ReLoRA(model, every=12, lr=4e-3).train(rows(40, 44))
print("finite", int(all(p.isfinite().all() for p in model.parameters())))
