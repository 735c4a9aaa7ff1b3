# fp16 language model; the (tied) embedding table has an optimizer of its own (lower betas, no decay)
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(1234)
vocab, dim, ctx, bs = 80, 32, 16, 8


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.mix = nn.GRU(dim, dim, batch_first=True)
        self.ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))
        self.out = nn.Linear(dim, vocab, bias=False)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.out.weight = self.embed.weight

    def forward(self, ids):
        h = self.embed(ids)
        with torch.autocast("cpu", enabled=False):
            h = self.mix(h.float())[0]
        h = h + self.ff(h)
        return self.out(h)


net = TinyLM()
body = [p for n, p in net.named_parameters() if not n.startswith("embed")]
opt_body = torch.optim.AdamW(body, lr=2e-3, weight_decay=0.01)
opt_embed = torch.optim.Adam(net.embed.parameters(), lr=1e-3, betas=(0.8, 0.95))
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 20, growth_interval=8)

stream = torch.randint(0, vocab, (bs * (ctx + 1) * 25,), generator=torch.Generator().manual_seed(9))
stream = stream.view(25, bs, ctx + 1)

for step, chunk in enumerate(stream, 1):
    inp, tgt = chunk[:, :-1], chunk[:, 1:]
    opt_body.zero_grad()
    opt_embed.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        logits = net(inp)
    loss = F.cross_entropy(logits.float().flatten(0, 1), tgt.flatten())
    scaler.scale(loss).backward()
    scaler.unscale_(opt_body)
    scaler.unscale_(opt_embed)
    torch.nn.utils.clip_grad_norm_(body, 1.0)
    scaler.step(opt_body)
    opt_embed.step()
    scaler.update()
    print("step", step, "loss", round(loss.item(), 4))

print("norm2", sum(p.detach().pow(2).sum().item() for p in net.parameters()))
