import argparse
import torch

# a script that was written for float16 and moved to bfloat16: the GradScaler stayed, so the scale climbs
# to the end of float32 and keeps knocking there

parser = argparse.ArgumentParser()
parser.add_argument('--steps', type=int, default=40)
parser.add_argument('--accum', type=int, default=2)
parser.add_argument('--seed', type=int, default=77)
args = parser.parse_args()

torch.manual_seed(args.seed)

text = ("the miller sold the flour to the baker and the baker sold the bread to the miller "
        "and the river turned the wheel for both of them ") * 12
chars = sorted(set(text))
data = torch.tensor([chars.index(c) for c in text])
ctx = 16


class Block(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln = torch.nn.LayerNorm(d)
        self.att = torch.nn.MultiheadAttention(d, 2, batch_first=True)
        self.ff = torch.nn.Sequential(torch.nn.LayerNorm(d), torch.nn.Linear(d, 4 * d), torch.nn.GELU(),
                                      torch.nn.Linear(4 * d, d))

    def forward(self, x):
        n = self.ln(x)
        mask = torch.triu(torch.ones(x.size(1), x.size(1), dtype=torch.bool), 1)
        x = x + self.att(n, n, n, attn_mask=mask, need_weights=False)[0]
        return x + self.ff(x)


class CharLM(torch.nn.Module):
    def __init__(self, v, d=32):
        super().__init__()
        self.tok = torch.nn.Embedding(v, d)
        self.pos = torch.nn.Parameter(0.02 * torch.randn(ctx, d))
        self.blocks = torch.nn.Sequential(Block(d), Block(d))
        self.head = torch.nn.Linear(d, v)

    def forward(self, ids):
        return self.head(self.blocks(self.tok(ids) + self.pos))


model = CharLM(len(chars))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler('cpu', init_scale=2.0 ** 121, growth_interval=5)
lowered = 0
for step in range(args.steps):
    total = 0.0
    for _ in range(args.accum):
        start = torch.randint(0, len(data) - ctx - 1, (16,))
        ids = torch.stack([data[s:s + ctx + 1] for s in start])
        with torch.autocast('cpu', dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(),
                                                     reduction='sum')
        scaler.scale(loss / args.accum).backward()
        total += loss.item() / ids[:, 1:].numel() / args.accum
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    lowered += scaler.get_scale() < before
    print(f'{step + 1:3d} loss={total:.6f} log2scale={torch.tensor(before).log2().item():.0f}')
print('skipped', lowered)
print('final', sum(p.abs().sum().item() for p in model.parameters()))
