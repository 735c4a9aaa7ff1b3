# DPO on handover scripts: which of two radio reports would the trainer rather hear?
# length-normalised log-probs (the long reports won otherwise), reference = frozen copy
import copy
import random
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Cfg:
    beta: float = 2.0
    lr: float = 3e-3
    max_len: int = 28
    width: int = 40
    steps: int = 32
    per_step: int = 4
    seed: int = 112


cfg = Cfg()
random.seed(cfg.seed)
torch.manual_seed(cfg.seed)

WORDS = ("<pad> <sep> patient male female adult child aged fall chest pain sats low high pulse weak strong "
         "airway clear blocked breathing fast slow given oxygen aspirin morphine eta minutes five ten stable "
         "critical no known allergies history of asthma diabetes conscious alert um err whatever maybe").split()
IDX = {w: i for i, w in enumerate(WORDS)}
TIDY = "airway clear breathing fast sats low given oxygen eta five minutes".split()
RAMBLE = "um err maybe whatever fall um no known err".split()


def scene(n):
    body = WORDS[2:36]
    return [random.choice(body) for _ in range(n)]


def make_pairs(n):
    """(scene, preferred report, other report) as the trainers marked them."""
    pairs = []
    for i in range(n):
        size = random.randint(5, 12)
        if i == 74:
            size = 31                       # the motorway pile-up, dictated in one go
        good = random.sample(TIDY, random.randint(5, 9))
        bad = random.sample(RAMBLE, random.randint(4, 7))
        pairs.append((scene(size), good, bad))
    return pairs


def encode(prompt, reply):
    ids = [IDX[w] for w in prompt] + [IDX["<sep>"]] + [IDX[w] for w in reply]
    is_reply = [0] * (len(prompt) + 1) + [1] * len(reply)
    ids, is_reply = ids[:cfg.max_len], is_reply[:cfg.max_len]
    fill = cfg.max_len - len(ids)
    return ids + [0] * fill, is_reply + [0] * fill


class RadioLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(len(WORDS), cfg.width)
        self.rnn = nn.GRU(cfg.width, cfg.width, batch_first=True)
        self.head = nn.Linear(cfg.width, len(WORDS))

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.head(h)


def reply_logp(lm, ids, is_reply):
    logp = F.log_softmax(lm(ids[:, :-1]), dim=-1)
    picked = logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
    keep = is_reply[:, 1:].float()
    return (picked * keep).sum(-1) / keep.sum(-1)


def batches(pairs):
    for a in range(0, len(pairs), cfg.per_step):
        chunk = pairs[a:a + cfg.per_step]
        win = [encode(p, g) for p, g, _ in chunk]
        lose = [encode(p, b) for p, _, b in chunk]
        yield tuple(torch.tensor([r[k] for r in win + lose]) for k in (0, 1))


policy = RadioLM()
reference = copy.deepcopy(policy).eval().requires_grad_(False)
optim = torch.optim.RMSprop(policy.parameters(), lr=cfg.lr)

for step, (ids, is_reply) in enumerate(batches(make_pairs(cfg.steps * cfg.per_step)), 1):
    with torch.no_grad():
        ref_w, ref_l = reply_logp(reference, ids, is_reply).chunk(2)
    pol_w, pol_l = reply_logp(policy, ids, is_reply).chunk(2)
    margin = cfg.beta * ((pol_w - ref_w) - (pol_l - ref_l))
    loss = -F.logsigmoid(margin).mean()
    optim.zero_grad(set_to_none=True)
    loss.backward()
    optim.step()
    print(f"step={step} dpo={loss.item():.6f} acc={(margin > 0).float().mean().item():.2f}")

print("checksum", float(sum(p.detach().sum() for p in policy.parameters())))
