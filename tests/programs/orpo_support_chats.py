"""ORPO on support-chat preferences with a tiny GPT-2: likelihood of the chosen reply plus an odds-ratio term."""
import argparse
import random

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

VOCAB, EOS, MAX_LEN = 96, 0, 26


def synthetic_pairs(n, seed):
    rng = random.Random(seed)
    pairs = []
    for i in range(n):
        # now and then a customer pastes a whole log file into the prompt
        prompt = [rng.randrange(1, VOCAB) for _ in range(40 if i in (41, 78) else rng.randint(4, 9))]
        topic = prompt[-1]
        chosen = [(topic + k) % (VOCAB - 1) + 1 for k in range(rng.randint(4, 8))] + [EOS]
        rejected = [rng.randrange(1, VOCAB) for _ in range(rng.randint(3, 10))] + [EOS]
        pairs.append((prompt, chosen, rejected))
    return pairs


def encode(pairs, which):
    """Prompt and reply in one row; the labels cover the reply only. The chosen reply is never cut, the prompt is."""
    rows, labels = [], []
    for pair in pairs:
        prompt, reply = pair[0], pair[which]
        if which == 1:
            prompt = prompt[: MAX_LEN - len(reply)]
        row = (prompt + reply)[:MAX_LEN]
        label = ([-100] * len(prompt) + reply)[:MAX_LEN]
        fill = MAX_LEN - len(row)
        rows.append(row + [EOS] * fill)
        labels.append(label + [-100] * fill)
    return torch.tensor(rows), torch.tensor(labels)


def mean_logp(model, ids, labels):
    logits = model(input_ids=ids).logits[:, :-1]
    labels = labels[:, 1:]
    spoken = labels != -100
    logp = logits.log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (logp * spoken).sum(-1) / spoken.sum(-1).clamp(min=1)


def log_odds(logp):
    return logp - torch.log1p(-torch.exp(logp))


def orpo_loss(model, pairs, weight):
    good = mean_logp(model, *encode(pairs, 1))
    bad = mean_logp(model, *encode(pairs, 2))
    ratio = F.logsigmoid(log_odds(good) - log_odds(bad))
    return (-good - weight * ratio).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=24)
    ap.add_argument("--accumulate", type=int, default=2)
    ap.add_argument("--micro", type=int, default=2)
    ap.add_argument("--odds-weight", type=float, default=0.2)
    args = ap.parse_args()

    torch.manual_seed(33)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=MAX_LEN, n_embd=32, n_layer=2, n_head=2,
                                       resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=EOS, eos_token_id=EOS))
    model.train()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    stream = iter(synthetic_pairs(args.steps * args.accumulate * args.micro, seed=33))
    for step in range(1, args.steps + 1):
        total = 0.0
        for _ in range(args.accumulate):
            micro = [next(stream) for _ in range(args.micro)]
            loss = orpo_loss(model, micro, args.odds_weight) / args.accumulate
            loss.backward()
            total += loss.item()
        opt.step()
        opt.zero_grad(set_to_none=True)
        print(f"step {step} orpo {total:.5f}")
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
