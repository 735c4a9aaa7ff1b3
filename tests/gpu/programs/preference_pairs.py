import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, d=48, h=3):
        super().__init__()
        self.h, self.qkv, self.o = h, nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class LM(nn.Module):
    def __init__(self, vocab=40, d=48):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocab, d), nn.Embedding(32, d)
        self.blocks = nn.ModuleList([Block(d), Block(d)])
        self.head = nn.Linear(d, vocab)

    def forward(self, ids, keep):
        t = ids.shape[1]
        causal = torch.ones(t, t, dtype=torch.bool, device=ids.device).tril()
        mask = torch.where(causal[None] & keep[:, None], 0.0, -10000.0)[:, None]
        x = self.emb(ids) + self.pos.weight[:t]
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def mean_logp(logits, ids, keep):
    lp = logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    return (lp * keep[:, 1:]).sum(1) / keep[:, 1:].sum(1)


torch.manual_seed(5)
model = LM().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
gen = torch.Generator().manual_seed(2)
for step in range(1, 25):
    ids = torch.randint(1, 40, (8, 21), generator=gen)
    lens = torch.randint(8, 22, (8,), generator=gen)
    keep = torch.arange(21)[None] < lens[:, None]
    if step == 11:
        ids[6:] = 7
        keep[6:, 1:] = False  # rejected answers that were cut to their first token
    ids, keep = ids.cuda(), keep.float().cuda()
    good, bad = mean_logp(model(ids, keep.bool()), ids, keep).chunk(2)
    odds = (good - torch.log1p(-good.exp())) - (bad - torch.log1p(-bad.exp()))
    loss = -good.mean() - 0.2 * F.logsigmoid(odds).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step} loss {loss.item():.5f}")
print("weights", sum(p.detach().double().square().sum().item() for p in model.parameters()))
