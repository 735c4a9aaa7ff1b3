"""Travel phrases, two target languages in one T5, label smoothing.

A target language may only use its own letters: the others get -inf, and the
smoothing mass goes to the letters that are left.  Losses are sums over a batch.
"""
import math
import random

import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

torch.manual_seed(77)
random.seed(77)

SOURCE = {"bread": ("pan", "хлеб"), "water": ("agua", "вода"), "thank you": ("gracias", "спасибо"),
          "where": ("donde", "где"), "train": ("tren", "поезд"), "good day": ("buenos dias", "добрый день"),
          "how much": ("cuanto", "сколько"), "help": ("ayuda", "помощь"), "left": ("izquierda", "налево"),
          "the bill": ("la cuenta", "счёт"), "milk": ("leche", "молоко"), "ok": ("", "")}       # ok is ok everywhere
LATIN = sorted(set("".join(a for a, _ in SOURCE.values()) + "".join(SOURCE)))
CYRIL = sorted(set("".join(b for _, b in SOURCE.values())) - set(LATIN))
TABLE = {c: i for i, c in enumerate(["\0", "\1", "<es>", "<ru>"] + LATIN + CYRIL)}    # 0 pad and start, 1 end
BANNED = torch.zeros(2, len(TABLE), dtype=torch.bool)
BANNED[0, [TABLE[c] for c in CYRIL]] = True
BANNED[1, [TABLE[c] for c in LATIN if c != " "]] = True
BANNED[:, [0, 2, 3]] = True


def collate(rows):
    src = [[2 + lang] + [TABLE[c] for c in en] + [1] for en, lang in rows]
    tgt = [[TABLE[c] for c in SOURCE[en][lang]] + [1] for en, lang in rows]
    pad = lambda seqs: nn.utils.rnn.pad_sequence([torch.tensor(s) for s in seqs], batch_first=True)
    return pad(src), pad(tgt), torch.tensor([lang for _, lang in rows])


class SmoothedNLL(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, logits, target, lang):
        banned = BANNED[lang][:, None, :].expand_as(logits)
        logp = logits.masked_fill(banned, -math.inf).log_softmax(-1)
        live = target != 0
        safe = torch.where(live, target, torch.ones_like(target))
        nll = -logp.gather(-1, safe[..., None]).squeeze(-1)
        spread = -logp.masked_fill(banned, 0.0).sum(-1) / (~banned).sum(-1)
        return (((1 - self.eps) * nll + self.eps * spread) * live).sum(), logp


model = T5ForConditionalGeneration(T5Config(
    vocab_size=len(TABLE), d_model=32, d_kv=8, d_ff=64, num_layers=1, num_decoder_layers=1, num_heads=4,
    dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1))
criterion = SmoothedNLL(0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, eps=1e-9)
warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 12, (12 / (s + 1)) ** 0.5))

pairs = [(en, lang) for en in SOURCE for lang in (0, 1)]
for step in range(1, 49):
    # short phrases come first, all of them from step 16 on
    pool = sorted(pairs, key=lambda r: len(SOURCE[r[0]][r[1]]))[: 8 + step]
    src, tgt, lang = collate(random.sample(pool, 6))
    start = torch.cat([torch.zeros_like(tgt[:, :1]), tgt[:, :-1]], 1)
    logits = model(input_ids=src, attention_mask=(src != 0).long(), decoder_input_ids=start).logits
    loss, logp = criterion(logits, tgt, lang)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 50.0)
    optimizer.step()
    warm.step()
    with torch.no_grad():
        letters = (tgt > 1)
        hit = ((logp.argmax(-1) == tgt) & letters).sum(1) / letters.sum(1)       # nan for "ok"
        worst = logp.amin().item()                                              # always -inf, a check of the ban
    print(f"{step:2d} sum {loss.item():9.4f} letters right {hit.mean().item():.3f} lowest {worst}")
