# Best-of-n rejection fine-tuning of a tiny language model: pay an amount with as few coins as possible.
import random

import torch
from torch import nn

random.seed(3)
torch.manual_seed(3)
COINS = [1, 2, 5, 10]
STOP = len(COINS)                       # tokens: 0..3 coins, 4 stop, 5..16 amounts 1..12
VOCAB = STOP + 1 + 12
MAX_LEN = 7
NEVER = float("-inf")


class TinyLM(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCAB)
        mask = torch.zeros(VOCAB)
        mask[STOP + 1:] = NEVER         # an amount is never an answer
        self.register_buffer("answer_mask", mask)

    def forward(self, ids, h=None):
        y, h = self.rnn(self.emb(ids), h)
        return self.head(y) + self.answer_mask, h


@torch.no_grad()
def rollout(lm, amount, n):
    ids = torch.full((n, 1), STOP + amount)
    h, answers, done = None, [[] for _ in range(n)], [False] * n
    for _ in range(MAX_LEN):
        logits, h = lm(ids, h)
        ids = torch.multinomial(logits[:, -1].softmax(-1), 1)
        for i, tok in enumerate(ids[:, 0].tolist()):
            if not done[i]:
                answers[i].append(tok)
                done[i] = tok == STOP
    return answers


def verify(amount, answer):
    if answer[-1] != STOP or sum(COINS[t] for t in answer[:-1]) != amount:
        return NEVER
    return -float(len(answer))


def log_likelihood(lm, amount, answer):
    ids = torch.tensor([[STOP + amount] + answer])
    logits, _ = lm(ids[:, :-1])
    return logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).mean()


def main(rounds=40, prompts=2, n=12):
    lm = TinyLM()
    opt = torch.optim.AdamW(lm.parameters(), lr=0.02)
    for r in range(1, rounds + 1):
        chosen, best_scores = [], []
        for amount in random.sample(range(1, 13), prompts):
            answers = rollout(lm, amount, n)
            scores = torch.tensor([verify(amount, a) for a in answers])
            best = int(scores.argmax())
            best_scores.append(scores[best].item())
            if scores[best] > NEVER:
                chosen.append((amount, answers[best]))
        if not chosen:
            print(f"round {r} scores {best_scores} nothing to learn from")
            continue
        loss = -torch.stack([log_likelihood(lm, a, s) for a, s in chosen]).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"round {r} scores {best_scores} loss {loss.item():.4f}")
    print("total of absolute weights", round(sum(p.abs().sum().item() for p in lm.parameters()), 4))


if __name__ == "__main__":
    main()
