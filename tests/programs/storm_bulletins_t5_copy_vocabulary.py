# Summaries of storm bulletins. The decoder may only use words that stand in the bulletin itself (plus </s>).
import random
import torch
from torch.nn.functional import log_softmax
from transformers import T5Config, T5ForConditionalGeneration

random.seed(3)
torch.manual_seed(3)

words = ("<pad> </s> gale storm calm rain hail snow fog sleet north south east west coast hills valley plain "
         "tonight morning noon evening warning issued for the with until gusts force seven eight nine ten easing "
         "rising slowly quickly expected bulletin office reports no change").split()
idx = {w: i for i, w in enumerate(words)}
PAD, EOS = 0, 1
kinds, dirs, places, times, forces = words[2:10], words[10:14], words[14:18], words[18:22], words[29:33]


def bulletin():
    if random.random() < 0.15:
        return "office reports no change for the coast until noon", ""
    k, d, p, t, f = map(random.choice, (kinds, dirs, places, times, forces))
    tail = random.choice(["easing slowly", "rising quickly", "easing quickly"])
    return f"bulletin warning issued for the {p} {k} with gusts {d} force {f} expected {t} {tail}", f"{k} {p} force {f} {t}"


def encode(texts, end):
    rows = [[idx[w] for w in t.split()] + ([EOS] if end else []) for t in texts]
    width = max(1, max(map(len, rows)))
    return torch.tensor([r + [PAD] * (width - len(r)) for r in rows])


config = T5Config(vocab_size=len(words), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                  relative_attention_num_buckets=8, relative_attention_max_distance=24, dropout_rate=0.0,
                  feed_forward_proj="gated-gelu", pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD)
net = T5ForConditionalGeneration(config)
opt = torch.optim.Adafactor(net.parameters(), lr=0.05)

quiet_days = {9, 21}          # nothing to report anywhere: the desk sends empty summaries
for step in range(1, 33):
    if step in quiet_days:
        pairs = [("office reports no change for the coast until noon", "")] * 12
    else:
        pairs = [bulletin() for _ in range(12)]
    src = encode([a for a, _ in pairs], True)
    tgt = encode([b + " </s>" if b else "" for _, b in pairs], False)
    keep = tgt != PAD
    dec_in = torch.cat([torch.full((len(tgt), 1), PAD), tgt[:, :-1]], 1)
    out = net(input_ids=src, attention_mask=(src != PAD).long(), decoder_input_ids=dec_in)

    banned = torch.ones(len(src), len(words), dtype=torch.bool).scatter_(1, src, False)
    banned[:, PAD] = True
    logits = out.logits.masked_fill(banned[:, None], float("-inf"))
    logp = log_softmax(logits, -1).gather(-1, tgt[..., None]).squeeze(-1)
    nll = -torch.where(keep, logp, torch.zeros_like(logp))
    loss = nll.sum() / keep.sum().clamp(min=1)

    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step", step, "words", int(keep.sum()), "loss", round(loss.item(), 4))

with torch.no_grad():
    total = sum(p.abs().sum() for p in net.parameters())
print("sum of absolute weights:", round(total.item(), 2))
