"""Continual pre-training on the ship chandlery's catalogues with replay of general text.

fp16 autocast + GradScaler on CPU (the cluster is booked; the numbers only have to be comparable). The scaler starts
as high as on the cluster, 2**22, so the first updates are skipped. Mixing share of the new domain grows with the steps,
and with the new domain's part codes the loss jumps each time that a stage begins.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

STAGES = [(0, 0.0), (8, 0.3), (16, 0.7), (24, 1.0)]
UPDATES, ACCUM, BATCH, T, V = 32, 3, 4, 16, 96


class Mixture:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def share(self, update):
        return [s for start, s in STAGES if start <= update][-1]

    def draw(self, update):
        new = torch.rand(BATCH, generator=self.g) < self.share(update)
        start = torch.randint(0, 48, (BATCH, 1), generator=self.g)
        general = (start + torch.arange(T)) % 48
        codes = 48 + (start * 7 + torch.arange(T) ** 2) % 48
        return torch.where(new[:, None], codes, general), new.float().mean().item()


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.h, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        att = q @ k.transpose(-1, -2) * (d // self.h) ** -0.5
        att = att.float().masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf")).softmax(-1)
        x = x + self.proj((att.to(v.dtype) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class TinyLM(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, d), nn.Embedding(T, d)
        self.blocks = nn.Sequential(Block(d, 4), Block(d, 4))
        self.nf = nn.LayerNorm(d)
        self.head = nn.Linear(d, V, bias=False)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[: ids.size(1)]
        return self.head(self.nf(self.blocks(x)))


def main():
    torch.manual_seed(55)
    model, data = TinyLM(), Mixture(9)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=4e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 22, growth_interval=12)
    for update in range(UPDATES):
        total, seen = 0.0, 0.0
        for _ in range(ACCUM):
            ids, frac = data.draw(update)
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(ids[:, :-1])
                loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten()) / ACCUM
            scaler.scale(loss).backward()
            total += loss.item()
            seen += frac / ACCUM
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)
        note = " (skipped)" if scaler.get_scale() < before else ""
        print(f"update {update + 1:2d} loss {total:.5f} new {seen:.2f} scale {before:.0f}{note}")


if __name__ == "__main__":
    main()
