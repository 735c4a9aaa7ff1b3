"""GRPO on lighthouse riddles, without a trainer: generate, score, normalise per group, update.

We keep this next to the TRL version to have something that fits on one screen.
"""
import json
import os
import random
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

SEED = 17
GROUP = 8
NEW_TOKENS = 7
WORDS = ("<pad> <eos> the a light fog horn lamp keeper stair tower rock sea night wind oil wick lens "
         "ship bell storm glass which what turns calls warns burns climbs ?").split()
STOI = {w: i for i, w in enumerate(WORDS)}
PAD, EOS = STOI["<pad>"], STOI["<eos>"]


def write_riddles(folder, n=30):
    rng = random.Random(SEED)
    nouns = WORDS[4:22]
    path = os.path.join(folder, "riddles.jsonl")
    with open(path, "w") as f:
        for i in range(n):
            question = ["which" if i % 2 else "what", rng.choice(WORDS[24:29]), "the", rng.choice(nouns), "?"]
            key = rng.sample(nouns, 6)
            if i == 18:
                key = []          # the schoolmaster left this one for the reader
            f.write(json.dumps({"question": " ".join(question), "key": " ".join(key)}) + "\n")
    return path


def read_riddles(path):
    with open(path) as f:
        for line in f:
            row = json.loads(line)
            yield [STOI[w] for w in row["question"].split()], {STOI[w] for w in row["key"].split()}


def reward(completion, key):
    """Words of the key that were said, earlier is better; nothing for the rest."""
    total = 0.0
    for pos, tok in enumerate(completion):
        if tok == EOS:
            break
        if tok in key:
            total += 1.0 / (1.0 + 0.37 * pos)
    return total


def completion_logps(model, seqs, start):
    logits = model(seqs).logits[:, start - 1:-1]
    logp = torch.log_softmax(logits.float(), -1)
    return logp.gather(-1, seqs[:, start:, None]).squeeze(-1)


def group_advantages(rewards):
    centred = rewards - rewards.mean()
    return centred / rewards.std()


def main():
    set_seed(SEED)
    cfg = GPT2Config(vocab_size=len(WORDS), n_positions=32, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0.0,
                     embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=EOS, eos_token_id=EOS, pad_token_id=PAD)
    policy = GPT2LMHeadModel(cfg)
    opt = torch.optim.AdamW(policy.parameters(), lr=1.5e-3, weight_decay=0.0)

    with tempfile.TemporaryDirectory() as tmp:
        riddles = list(read_riddles(write_riddles(tmp)))

    for it, (question, key) in enumerate(riddles, 1):
        prompt = torch.tensor([question])
        policy.eval()
        with torch.no_grad():
            seqs = policy.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=0,
                                   max_new_tokens=NEW_TOKENS, num_return_sequences=GROUP)
        policy.train()
        answers = seqs[:, len(question):]
        rewards = torch.tensor([reward(a.tolist(), key) for a in answers])
        adv = group_advantages(rewards)

        # everything up to and including the first <eos> counts
        alive = ((answers == EOS).cumsum(1) - (answers == EOS).long()) == 0
        old = None
        for _ in range(1):   # mu = 1 for now
            logp = completion_logps(policy, seqs, len(question))
            old = logp.detach() if old is None else old
            ratio = torch.exp(logp - old)
            surr = torch.minimum(ratio * adv[:, None], ratio.clamp(0.8, 1.2) * adv[:, None])
            loss = -(surr * alive).sum(1).div(alive.sum(1)).mean() - 0.01 * (-logp * alive).mean()
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            opt.step()
        print(f"riddle {it:02d}  loss {loss.item():+.6f}  reward {rewards.mean().item():.4f}")

    print("sum of weights", f"{sum(p.double().sum().item() for p in policy.parameters()):.6f}")


if __name__ == "__main__":
    main()
