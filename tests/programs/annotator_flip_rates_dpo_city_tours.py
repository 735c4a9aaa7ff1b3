"""Preference tuning of a tiny GPT-2 that answers visitors of a city.

Every pair was judged by one volunteer.  Each volunteer has a flip rate, estimated
from control questions; the loss is corrected for it (robust DPO).
"""
import copy
import random

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

random.seed(11)
torch.manual_seed(11)

# volunteer: (control questions answered the wrong way, control questions asked)
CONTROL = {
    "ada": (1, 16),
    "bram": (2, 20),
    "chidi": (0, 12),
    "dolores": (3, 24),
    "emil": (5, 10),
    "fatou": (1, 9),
}
WEEK_STAFF = ["ada", "bram", "chidi", "dolores", "fatou"]
BETA = 0.4
N_STEPS = 34
PROMPT, ANSWER, VOCAB = 5, 7, 48


def sentence(polite):
    lo, hi = (10, 32) if polite else (24, 47)
    return [random.randint(lo, hi) for _ in range(ANSWER)]


def draw_week(week):
    rows = []
    for k in range(8):
        who = WEEK_STAFF[(week + k) % len(WEEK_STAFF)]
        if week in (16, 27) and k == 3:
            who = "emil"                       # he helps out now and then
        prompt = [random.randint(1, 9) for _ in range(PROMPT)]
        good, bad = sentence(True), sentence(False)
        wrong, asked = CONTROL[who]
        if random.random() < wrong / asked:
            good, bad = bad, good
        rows.append((prompt + good, prompt + bad, wrong / asked))
    chosen = torch.tensor([r[0] for r in rows])
    rejected = torch.tensor([r[1] for r in rows])
    flip = torch.tensor([r[2] for r in rows])
    return chosen, rejected, flip


def answer_logp(model, ids):
    logits = model(input_ids=ids).logits[:, :-1]
    lp = F.log_softmax(logits.float(), -1).gather(2, ids[:, 1:, None]).squeeze(2)
    return lp[:, PROMPT - 1:].sum(1)


def main():
    cfg = GPT2Config(vocab_size=VOCAB, n_positions=16, n_embd=32, n_layer=2, n_head=2,
                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                     bos_token_id=0, eos_token_id=0)
    policy = GPT2LMHeadModel(cfg)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    opt = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=0.01)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 6))

    for week in range(1, N_STEPS + 1):
        chosen, rejected, flip = draw_week(week)
        both = torch.cat([chosen, rejected])
        pc, pr = answer_logp(policy, both).chunk(2)
        with torch.no_grad():
            rc, rr = answer_logp(reference, both).chunk(2)
        h = BETA * ((pc - rc) - (pr - rr))
        kept = -(1 - flip) * F.logsigmoid(h)
        swapped = flip * F.logsigmoid(-h)
        loss = ((kept + swapped) / (1 - 2 * flip)).mean()

        opt.zero_grad()
        loss.backward()
        opt.step()
        warm.step()
        print(f"week {week:2d}  loss {loss.item():+.5f}  margin {h.mean().item():+.4f}")

    total = sum(p.detach().double().pow(2).sum().item() for p in policy.parameters())
    print(f"sum of squared weights {total:.6f}")


if __name__ == "__main__":
    main()
