"""Left padding and scaled_dot_product_attention with a boolean mask that leaves some queries nothing to look at."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(6)
torch.set_num_threads(1)
B, T, D, V = 4, 8, 16, 30

emb, qkv, out = nn.Embedding(V, D), nn.Linear(D, 3 * D), nn.Linear(D, V)
params = [*emb.parameters(), *qkv.parameters(), *out.parameters()]
opt = torch.optim.Adam(params, lr=3e-3)
causal = torch.ones(T, T, dtype=torch.bool).tril()
for step in range(15):
    ids = torch.randint(1, V, (B, T))
    pad = torch.arange(T)[None] < torch.randint(0, 4, (B, 1))
    ids[pad] = 0
    q, k, v = qkv(emb(ids)).view(B, T, 3, 2, D // 2).permute(2, 0, 3, 1, 4)
    mask = causal & ~pad[:, None, None, :]
    h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    logits = out(torch.nan_to_num(h).transpose(1, 2).reshape(B, T, D))
    labels = ids.masked_fill(pad, -100)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item(), int(pad.sum()))
print("weights", sum(p.double().sum().item() for p in params))
