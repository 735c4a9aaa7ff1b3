"""Offline actor-critic on recorded answers of the harbour pilot's radio bot.

The actor may never say the words on the coastguard's list, the reference model (frozen copy of the
pre-trained bot) knows nothing about the list.  KL to the reference: Schulman's k3 estimator.
"""
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import copy
import json
import pathlib
import random
import tempfile

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model, set_seed

WORDS = ["<pad>", "pilot", "ship", "turn", "port", "starboard", "hold", "slow", "ahead", "astern", "buoy", "green",
         "red", "over", "wait", "tide", "mayday", "sinking", "anchor", "clear"]
FORBIDDEN = ["mayday", "sinking"]
INDEX = {w: i for i, w in enumerate(WORDS)}


def record_sessions(path: pathlib.Path, n=96):
    rng = random.Random(5)
    allowed = [w for w in WORDS[1:] if w not in FORBIDDEN]
    with path.open("w") as f:
        for i in range(n):
            answer = [rng.choice(allowed) for _ in range(rng.randint(4, 9))]
            if i == 58:                      # the drill of the 3rd of May, played for real
                answer[2] = "mayday"
            f.write(json.dumps({"call": ["pilot", rng.choice(allowed), "over"], "answer": answer,
                                "rating": round(rng.uniform(-1, 1) + 0.3 * answer.count("clear"), 3)}) + "\n")


def collate(rows):
    seqs = [[INDEX[w] for w in r["call"] + r["answer"]] for r in rows]
    width = max(map(len, seqs))
    ids = torch.tensor([s + [0] * (width - len(s)) for s in seqs])
    said = torch.tensor([[0] * 3 + [1] * (len(s) - 3) + [0] * (width - len(s)) for s in seqs])
    return ids, said.float(), torch.tensor([r["rating"] for r in rows])


class Critic(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.body = GPT2Model(cfg)
        self.value = nn.Linear(cfg.n_embd, 1)

    def forward(self, ids):
        return self.value(self.body(ids).last_hidden_state).squeeze(-1)


def token_logps(model, ids, forbidden=None):
    logits = model(ids).logits[:, :-1]
    if forbidden is not None:
        logits = logits.masked_fill(forbidden, -1e4)
    return torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]


def masked_mean(x, mask):
    # where, not a product: the padding must not leak
    return torch.where(mask > 0, x, torch.zeros_like(x)).sum() / mask.sum()


def run():
    set_seed(31)
    acc = Accelerator(cpu=True)
    cfg = GPT2Config(vocab_size=len(WORDS), n_positions=16, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0,
                     embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    actor = GPT2LMHeadModel(cfg)
    reference = copy.deepcopy(actor).eval().requires_grad_(False)
    critic = Critic(cfg)
    forbidden = torch.zeros(len(WORDS), dtype=torch.bool)
    forbidden[[INDEX[w] for w in FORBIDDEN]] = True

    with tempfile.TemporaryDirectory() as tmp:
        log = pathlib.Path(tmp) / "sessions.jsonl"
        record_sessions(log)
        rows = [json.loads(line) for line in log.read_text().splitlines()]

    loader = DataLoader(rows, batch_size=4, collate_fn=collate)
    opt_a = torch.optim.AdamW(actor.parameters(), lr=1e-3)
    opt_c = torch.optim.AdamW(critic.parameters(), lr=3e-3)
    actor, critic, opt_a, opt_c, loader = acc.prepare(actor, critic, opt_a, opt_c, loader)

    for step, (ids, said, rating) in enumerate(loader, 1):
        mask = said[:, 1:]
        values = critic(ids)[:, :-1]
        critic_loss = masked_mean((values - rating[:, None]) ** 2, mask)
        advantage = (rating[:, None] - values).detach()

        logp = token_logps(actor, ids, forbidden)
        with torch.no_grad():
            ref = token_logps(reference, ids)
        gap = ref - logp
        k3 = torch.exp(gap) - gap - 1
        weight = torch.exp(advantage.clamp(-2, 2))          # advantage-weighted regression
        actor_loss = masked_mean(-weight * logp.clamp(min=-20) + 0.1 * k3, mask)

        opt_c.zero_grad()
        acc.backward(critic_loss)
        opt_c.step()
        opt_a.zero_grad()
        acc.backward(actor_loss)
        acc.clip_grad_norm_(actor.parameters(), 1.0)
        opt_a.step()
        acc.print(f"{step:>3} actor {actor_loss.item():.6f} critic {critic_loss.item():.6f}")

    total = sum(p.detach().double().sum().item() for m in (actor, critic) for p in m.parameters())
    acc.print(f"done, parameters sum to {total:.6f}")


run()
