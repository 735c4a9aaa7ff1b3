"""Decoder-only char model with ALiBi; every few steps we decode greedily through the KV cache and
compare with the uncached forward, because the cache was wrong once (offset of the bias)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(404)
torch.set_num_threads(1)
VERSES = """there was a crooked man and he walked a crooked mile
he found a crooked sixpence upon a crooked stile
he bought a crooked cat which caught a crooked mouse
and they all lived together in a little crooked house
this is the farmer sowing his corn that kept the cock that crowed in the morn
""".split("\n")[:-1]
CHARS = sorted(set("".join(VERSES))) + ["^", "$"]
STOI = {c: i for i, c in enumerate(CHARS)}
PAD = len(CHARS)
NEG_INF = float("-inf")


def alibi_slopes(n_head):
    return torch.tensor([2 ** (-8 * (i + 1) / n_head) for i in range(n_head)])


class Attn(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.h, self.qkv, self.o = heads, nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def forward(self, x, cache=None):
        B, T, D = x.shape
        q, k, v = (z.view(B, T, self.h, D // self.h).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        if cache is not None:
            if "k" in cache:
                k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
            cache["k"], cache["v"] = k, v
        S = k.size(2)
        qpos, kpos = torch.arange(S - T, S)[:, None], torch.arange(S)[None]
        dist = (kpos - qpos).float()
        bias = self.slopes[:, None, None] * dist
        bias = bias.masked_fill(dist > 0, NEG_INF)            # causal; the diagonal is always open
        w = (q @ k.transpose(-1, -2) / (D // self.h) ** 0.5 + bias).softmax(-1)
        return self.o((w @ v).transpose(1, 2).reshape(B, T, D))


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.n1, self.n2, self.attn = nn.LayerNorm(d), nn.LayerNorm(d), Attn(d, heads)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, cache=None):
        x = x + self.attn(self.n1(x), cache)
        return x + self.ff(self.n2(x))


class RigmaroleLM(nn.Module):
    def __init__(self, d=48, heads=4, layers=2):
        super().__init__()
        self.emb = nn.Embedding(PAD + 1, d, padding_idx=PAD)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.head = nn.Linear(d, PAD)

    def forward(self, ids, caches=None):
        x = self.emb(ids)
        for i, b in enumerate(self.blocks):
            x = b(x, None if caches is None else caches[i])
        return self.head(x)


def collate(lines):
    rows = [[STOI["^"], *(STOI[c] for c in l), STOI["$"]] for l in lines]
    n = max(map(len, rows))
    return torch.tensor([r + [PAD] * (n - len(r)) for r in rows])   # right padding


@torch.no_grad()
def recite(model, n=24):
    model.eval()
    caches = [{} for _ in model.blocks]
    ids, tok, logprobs = [STOI["^"]], torch.tensor([[STOI["^"]]]), []
    for _ in range(n):
        lg = model(tok, caches)[:, -1]
        lg[:, STOI["^"]] = NEG_INF                  # never emit a second start
        logprobs.append(lg.log_softmax(-1))
        tok = lg.argmax(-1, keepdim=True)
        ids.append(tok.item())
    full = model(torch.tensor([ids[:-1]]))[0]
    full[:, STOI["^"]] = NEG_INF
    drift = (full.log_softmax(-1) - torch.cat(logprobs)).abs().nan_to_num(0.0).max().item()
    model.train()
    ends = [i for i in ids if i == STOI["$"]]
    mean_end = torch.tensor([float(ids.index(e)) for e in ends]).mean().item()   # nan when no verse ended
    return "".join(CHARS[i] for i in ids[1:]), drift < 1e-3, mean_end


model = RigmaroleLM()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)
# short prefixes first
for step in range(1, 46):
    cut = 12 if step <= 15 else 30 if step <= 30 else 200
    pick = torch.randperm(len(VERSES))[:3].tolist()
    ids = collate([VERSES[i][:cut] for i in pick])
    logits = model(ids[:, :-1])
    # nats per verse, summed: the jump at 16 and 31 is the longer prefix
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD, reduction="sum") / len(pick)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
    line = f"{step:02d} cut {cut:3d} nats/verse {loss.item():.5f}"
    if step % 9 == 0:
        text, same, ended = recite(model)
        line += f" | {text!r} cache-ok {same} mean end {ended:.1f}"
    print(line)
