import torch
import torch.nn as nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, d=64, h=4):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.n = nn.LayerNorm(d)

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = (f(self.n(x)).view(b, t, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        return x + self.o(y.transpose(1, 2).reshape(b, t, d))


torch.manual_seed(17)
VOCAB = 50
emb = nn.Embedding(VOCAB, 64).cuda()
layers = nn.ModuleList(Layer() for _ in range(2)).cuda()
head = nn.Linear(64, VOCAB).cuda()
params = [*emb.parameters(), *layers.parameters(), *head.parameters()]
opt = torch.optim.AdamW(params, lr=1e-3, fused=True)
for step in range(1, 31):
    ids = torch.randint(1, VOCAB, (8, 16))
    lens = torch.randint(4, 17, (8,))
    keep = torch.arange(16)[None] < lens[:, None]
    ids, keep = ids.masked_fill(~keep, 0).cuda(), keep.cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        x = emb(ids)
        for layer in layers:
            x = layer(x, keep)
        logits = head(x)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), ignore_index=0)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(params, 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    if step % 5 == 0:
        print(step, round(loss.item(), 4))
print("sum of squares", sum(p.detach().double().square().sum().item() for p in params))
