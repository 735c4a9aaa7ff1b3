# RLOO for a crossword clue writer. k samples per answer word, baseline = mean of the other k-1 rewards.
# Rewards are 0/1 from a checker (clue must not contain the answer token), so groups often agree: loss 0.
# The illegal tokens of a position are set to -inf before sampling *and* before scoring.
import argparse

import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--k", type=int, default=4)
ap.add_argument("--words", type=int, default=3)
ap.add_argument("--steps", type=int, default=40)
ap.add_argument("--beta", type=float, default=0.01)
ap.add_argument("--refresh-ref", type=int, default=15, help="copy the policy into the reference every N steps")
args = ap.parse_args()

torch.manual_seed(77)
V, L, D = 24, 7, 24
BOS, EOS = 0, 1
NEG_INF = float("-inf")


class ClueWriter(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.pos = nn.Parameter(torch.randn(L + 1, D) * 0.02)
        self.mix = nn.Linear(2 * D, D)
        self.out = nn.Linear(D, V, bias=False)
        self.out.weight = self.emb.weight

    def forward(self, seq, answer):
        x = self.emb(seq) + self.pos[: seq.size(1)]
        ctx = x.cumsum(1) / torch.arange(1, seq.size(1) + 1).view(1, -1, 1)
        a = self.emb(answer).unsqueeze(1).expand_as(ctx)
        logits = self.out(torch.tanh(self.mix(torch.cat([ctx, a], -1))))
        return logits.masked_fill(illegal(seq), NEG_INF)


def illegal(seq):
    """BOS never again; EOS not before two tokens; after EOS only EOS."""
    m = torch.zeros(*seq.shape, V, dtype=torch.bool)
    m[..., BOS] = True
    m[:, :2, EOS] = True
    ended = (seq == EOS).cumsum(1) > 0
    m[ended] = True
    m[..., EOS] &= ~ended
    return m


@torch.no_grad()
def sample(model, answer):
    seq = torch.full((answer.numel(), 1), BOS)
    while seq.size(1) <= L:
        p = model(seq, answer)[:, -1].softmax(-1)
        seq = torch.cat([seq, torch.multinomial(p, 1)], 1)
    return seq


def logprob(model, seq, answer):
    lp = model(seq[:, :-1], answer).log_softmax(-1)
    return lp.gather(-1, seq[:, 1:, None]).squeeze(-1).sum(-1)


policy, ref = ClueWriter(), ClueWriter()
ref.load_state_dict(policy.state_dict())
for p in ref.parameters():
    p.requires_grad_(False)
opt = torch.optim.RMSprop(policy.parameters(), lr=2e-3)

flat_groups = 0
for step in range(args.steps):
    words = torch.randint(2, V, (args.words,))
    answer = words.repeat_interleave(args.k)
    seq = sample(policy, answer)
    good = ~(seq[:, 1:] == answer[:, None]).any(1)
    reward = good.float()
    lp = logprob(policy, seq, answer)
    with torch.no_grad():
        shaped = reward - args.beta * (lp - logprob(ref, seq, answer))
        g = shaped.view(args.words, args.k)
        baseline = (g.sum(1, keepdim=True) - g) / (args.k - 1)
        adv = (g - baseline).flatten()
    loss = -(adv * lp).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()

    flat_groups += int((reward.view(args.words, args.k).std(1) == 0).sum())
    # how long are the clues that failed? nan when none failed, we plot it with gaps
    failed_len = (seq[~good] != EOS).float().sum(1).mean()
    if (step + 1) % args.refresh_ref == 0:
        ref.load_state_dict(policy.state_dict())
        opt.state.clear()
    print(f"{step + 1:3d} loss={loss.item():+.3e} r={reward.mean().item():.3f} failed_len={failed_len.item():.2f}")
print("groups that agreed:", flat_groups)
