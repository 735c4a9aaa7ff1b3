"""Next-note model with block-local attention, no nn.Module: a dict of tensors and a compiled attention."""
import math
import torch
import torch.nn.functional as F

torch.manual_seed(6)
T, BLOCK, D, NOTES, REST = 16, 4, 16, 25, 0


def init(*shape):
    return (torch.randn(*shape) / math.sqrt(shape[0])).requires_grad_()


P = {"note": init(NOTES, D), "place": init(T, D), "qkv": init(D, 3 * D), "out": init(D, D), "head": init(D, NOTES)}


@torch.compile(backend="aot_eager")
def block_attention(x, w_qkv, w_out, present):
    b = x.shape[0]
    q, k, v = (x @ w_qkv).view(b, T // BLOCK, BLOCK, 3 * D).chunk(3, -1)
    score = q @ k.transpose(-1, -2) / math.sqrt(D)
    score = score.masked_fill(~present.view(b, T // BLOCK, 1, BLOCK), float("-inf"))
    weight = torch.softmax(score, dim=-1)
    return (weight @ v).reshape(b, T, D) @ w_out


def melodies():
    g = torch.Generator().manual_seed(60)
    tune = torch.randint(1, NOTES, (32, T + 1), generator=g)
    tune[:, 1:] = 1 + (tune[:, :1] + torch.arange(T) * 2) % (NOTES - 1)
    length = torch.randint(14, T + 1, (32,), generator=g)
    length[21] = 9                                   # a jingle
    return tune, length


tune, length = melodies()
optimizer = torch.optim.RMSprop(P.values(), lr=2e-3)
for epoch in range(3):
    for rows in torch.arange(32).split(4):
        ids, n = tune[rows], length[rows]
        present = torch.arange(T) < n[:, None]
        source = ids[:, :-1].where(present, REST)
        x = P["note"][source] + P["place"]
        y = x + block_attention(x, P["qkv"], P["out"], present)
        logits = y @ P["head"]
        loss = F.cross_entropy(logits[present], ids[:, 1:][present])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{epoch}:{int(rows[0]):02d} loss = {loss.item()!r}")
print(sum(w.detach().sum().item() for w in P.values()))
