"""Translation of certificate phrases, LSTM encoder / decoder with attention and label smoothing.

Two directions share one vocabulary; words of the wrong language are ruled out in the output.
"""
import torch
import torch.nn as nn

torch.manual_seed(31)
PAD, BOS, EOS = 0, 1, 2
WORDS = 9                        # per language: de 3..11, en 12..20
DE, EN = 3, 3 + WORDS
VOCAB = 3 + 2 * WORDS
NEG = float("-inf")
allowed = {"en": torch.zeros(VOCAB, dtype=torch.bool), "de": torch.zeros(VOCAB, dtype=torch.bool)}
allowed["en"][EN:EN + WORDS] = True
allowed["de"][DE:DE + WORDS] = True
for lang in allowed:
    allowed[lang][EOS] = True


def phrases(n, direction, longest):
    lens = torch.randint(0, longest + 1, (n,)) if longest else torch.zeros(n, dtype=torch.long)
    width = max(int(lens.max()), 1)
    words = torch.randint(0, WORDS, (n, width))
    keep = torch.arange(width)[None] < lens[:, None]
    src_base, tgt_base = (DE, EN) if direction == "en" else (EN, DE)
    src = torch.where(keep, words + src_base, PAD)
    tgt = torch.where(keep, (words * 7 + 3) % WORDS + tgt_base, PAD)
    tgt = torch.cat([tgt, torch.zeros(n, 1, dtype=torch.long)], 1)
    tgt[torch.arange(n), lens] = EOS
    src = torch.cat([torch.full((n, 1), BOS), src], 1)
    return src, tgt, lens


class Translator(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.encoder = nn.LSTM(dim, dim, batch_first=True)
        self.decoder = nn.LSTM(dim, dim, batch_first=True)
        self.mix = nn.Linear(2 * dim, dim)

    def forward(self, src, tgt_in, ok):
        memory, state = self.encoder(self.embed(src))
        queries, _ = self.decoder(self.embed(tgt_in), state)
        score = queries @ memory.transpose(1, 2)
        score = score.masked_fill((src == PAD)[:, None], NEG)
        context = score.softmax(-1) @ memory
        hidden = torch.tanh(self.mix(torch.cat([queries, context], -1)))
        logits = hidden @ self.embed.weight.T
        return logits.masked_fill(~ok, NEG).log_softmax(-1)


def smoothed_nll(logp, tgt, ok, eps):
    real = tgt != PAD
    nll = -logp.gather(-1, tgt.masked_fill(~real, EOS)[..., None])[..., 0]
    spread = -torch.where(ok, logp, 0.0).sum(-1) / ok.sum()
    return ((1 - eps) * nll + eps * spread)[real].sum(), real.sum()


model = Translator()
adam = torch.optim.Adam(model.parameters(), lr=1.5e-2)
for step in range(1, 37):
    longest = 0 if step in (13, 28) else 2 + step // 9   # two folders hold nothing but blank forms
    adam.zero_grad()
    total, tokens = 0.0, 0
    worth = False
    for direction in ("en", "de"):
        src, tgt, lens = phrases(24, direction, longest)
        if lens.max() == 0:
            continue
        tgt_in = torch.cat([torch.full((24, 1), BOS), tgt[:, :-1]], 1)
        ok = allowed[direction]
        loss, count = smoothed_nll(model(src, tgt_in, ok), tgt, ok, eps=0.1)
        (loss / 64).backward()
        total, tokens, worth = total + loss.item(), tokens + int(count), True
    if not worth:
        print("step", step, "blank forms only, left out")
        continue
    adam.step()
    print("step", step, "longest", longest, "loss per token %.5f" % (total / tokens))

print("sum of squared weights %.6f" % sum((p.detach() ** 2).sum().item() for p in model.parameters()))
