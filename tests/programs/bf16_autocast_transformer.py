import torch
import torch.nn as nn
from tqdm import trange

torch.manual_seed(1)
torch.set_num_threads(1)


class Encoder(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(40, d)
        layer = nn.TransformerEncoderLayer(d, 4, 64, batch_first=True, dropout=0.1, activation="gelu")
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.cls = nn.Linear(d, 2)

    def forward(self, ids, pad):
        h = self.enc(self.emb(ids), src_key_padding_mask=pad)
        h = h.masked_fill(pad[..., None], 0).sum(1) / (~pad).sum(1, keepdim=True)
        return self.cls(h)


model = Encoder()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=2e-3, total_steps=14)
bar = trange(14, desc="train")
for i in bar:
    ids = torch.randint(1, 40, (8, 10))
    pad = torch.arange(10)[None] >= torch.randint(3, 11, (8, 1))
    y = (ids[:, 0] > 20).long()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(ids, pad), y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    bar.set_postfix(loss=f"{loss.item():.4f}")
    print(i, loss.item())
print("weights", sum(p.double().sum().item() for p in model.parameters()))
