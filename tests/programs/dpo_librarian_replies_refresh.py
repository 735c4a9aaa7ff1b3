"""DPO for a librarian's replies: margins are brought to unit spread, the reference follows every 14 rounds."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, LENGTH, PROMPT = 32, 12, 4


class MiniDecoder(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Parameter(0.1 * torch.randn(LENGTH, d))
        self.block = nn.TransformerEncoderLayer(d, 2, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(d, VOCAB)

    def forward(self, ids):
        n = ids.shape[1]
        mask = torch.full((n, n), float("-inf")).triu(1)
        return self.out(self.block(self.tok(ids) + self.pos[:n], src_mask=mask))


def reply_logp(model, ids):
    logp = model(ids[:, :-1]).log_softmax(-1)
    picked = logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
    return picked[:, PROMPT - 1:].sum(-1)


def draw_pairs(gen, n=8):
    """polite replies use the upper half of the vocabulary, curt ones the lower half"""
    prompt = torch.randint(0, VOCAB, (n, PROMPT), generator=gen)
    polite = torch.randint(VOCAB // 2, VOCAB, (n, LENGTH - PROMPT), generator=gen)
    curt = torch.randint(0, VOCAB // 2, (n, LENGTH - PROMPT), generator=gen)
    return torch.cat([prompt, polite], 1), torch.cat([prompt, curt], 1)


def preference_loss(policy, reference, good, poor, beta):
    with torch.no_grad():
        anchor = reply_logp(reference, good) - reply_logp(reference, poor)
    margin = reply_logp(policy, good) - reply_logp(policy, poor) - anchor
    spread = margin.detach().std()
    return -F.logsigmoid(beta * margin / spread).mean(), margin.detach()


def warm_up(policy, gen, rounds):
    opt = torch.optim.SGD(policy.parameters(), lr=0.05)
    for _ in range(rounds):
        good, _ = draw_pairs(gen)
        opt.zero_grad()
        F.cross_entropy(policy(good[:, :-1]).flatten(0, 1), good[:, 1:].flatten()).backward()
        opt.step()
    return policy


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=36)
    ap.add_argument("--refresh", type=int, default=14)
    ap.add_argument("--beta", type=float, default=0.5)
    args = ap.parse_args()
    torch.manual_seed(77)
    gen = torch.Generator().manual_seed(77)
    reference = MiniDecoder()
    policy = copy.deepcopy(reference)
    nn.init.normal_(policy.out.bias, std=0.05)
    reference.requires_grad_(False)
    opt = torch.optim.AdamW(policy.parameters(), lr=5e-4)
    for r in range(args.rounds):
        good, poor = draw_pairs(gen)
        loss, margin = preference_loss(policy, reference, good, poor, args.beta)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"round {r + 1:>2}  loss {loss.item():.5f}  preferred {(margin > 0).float().mean().item():.3f}")
        if (r + 1) % args.refresh == 0:
            reference.load_state_dict(policy.state_dict())
    print("policy weights, sum of squares:", sum(p.detach().pow(2).sum().item() for p in policy.parameters()))


if __name__ == "__main__":
    main()
