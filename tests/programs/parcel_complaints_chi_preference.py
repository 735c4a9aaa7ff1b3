# preference tuning without a trainer class: chi-squared regularised DPO (phi(r) = r + log r) on replies to complaints
import argparse
import copy
import random

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel
from trl.trainer.utils import selective_log_softmax

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=36)
parser.add_argument("--batch", type=int, default=6)
parser.add_argument("--beta", type=float, default=0.02)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--seed", type=int, default=3)
args = parser.parse_args()

torch.manual_seed(args.seed)
rng = random.Random(args.seed)
VOCAB, PAD, BOS, EOS = 48, 0, 1, 2
POLITE, RUDE = list(range(8, 24)), list(range(24, 40))


def reply(words, n):
    """polite and rude replies walk through their words in order, with a slip now and then"""
    at = rng.randrange(len(words))
    out = []
    for _ in range(n):
        out.append(words[at])
        at = (at + (1 if rng.random() < 0.9 else 3)) % len(words)
    return out + [EOS]


def pairs():
    out = []
    for i in range(args.steps * args.batch):
        prompt = [BOS] + [40 + rng.randrange(8) for _ in range(5)]
        n = rng.randint(6, 12)
        if i in (115, 170):            # two customers got the whole terms of carriage for an answer
            n = 150
        out.append((prompt, reply(POLITE, n), reply(RUDE, rng.randint(6, 12))))
    return out


def stack(prompts, answers):
    width = max(len(p) + len(a) for p, a in zip(prompts, answers))
    ids = torch.full((len(prompts), width), PAD)
    keep = torch.zeros(len(prompts), width)
    attention = torch.zeros(len(prompts), width, dtype=torch.long)
    for i, (p, a) in enumerate(zip(prompts, answers)):
        ids[i, :len(p) + len(a)] = torch.tensor(p + a)
        keep[i, len(p):len(p) + len(a)] = 1.0
        attention[i, :len(p) + len(a)] = 1
    return ids, attention, keep


def sequence_logps(model, ids, attention, keep):
    logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1]
    per_token = selective_log_softmax(logits, ids[:, 1:])
    return (per_token * keep[:, 1:]).sum(1)


def link(log_ratio):
    return torch.exp(log_ratio) + log_ratio


def chi_preference_loss(policy, reference, batch):
    prompts, chosen, rejected = zip(*batch)
    sides = [stack(prompts, chosen), stack(prompts, rejected)]
    with torch.no_grad():
        ref_w, ref_l = (sequence_logps(reference, *s) for s in sides)
    pol_w, pol_l = (sequence_logps(policy, *s) for s in sides)
    reward_w = args.beta * link(pol_w - ref_w)
    reward_l = args.beta * link(pol_l - ref_l)
    loss = -F.logsigmoid(reward_w - reward_l).mean()
    return loss, (reward_w > reward_l).float().mean()


config = GPT2Config(vocab_size=VOCAB, n_positions=192, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0,
                    embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=BOS, eos_token_id=EOS)
policy = GPT2LMHeadModel(config)
reference = copy.deepcopy(policy).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=args.lr, weight_decay=0.0)
data = pairs()

for step in range(1, args.steps + 1):
    batch = data[(step - 1) * args.batch: step * args.batch]
    loss, accuracy = chi_preference_loss(policy, reference, batch)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    print(f"{step:03d} loss={loss.item():.7f} acc={accuracy.item():.3f}", flush=True)
    optimizer.step()

print(f"sum|w| {sum(p.detach().abs().sum().item() for p in policy.parameters()):.6f}", flush=True)
