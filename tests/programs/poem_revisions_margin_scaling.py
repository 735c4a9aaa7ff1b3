# Preference tuning on pairs (revision an editor kept, revision an editor threw away).
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
V, L, PAIRS = 30, 9, 12
BETA = 0.8
KL_BUDGET = 0.22


class Verse(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, 20)
        self.rnn = nn.GRU(20, 28, batch_first=True)
        self.out = nn.Linear(28, V)

    def logp(self, seq):
        h, _ = self.rnn(self.emb(seq[:, :-1]))
        lp = self.out(h).log_softmax(-1)
        return lp.gather(-1, seq[:, 1:, None]).squeeze(-1).sum(-1)


def make_pairs(g):
    line = torch.randint(2, V, (PAIRS, L), generator=g)
    kept, dropped = line.clone(), line.clone()
    for i in range(PAIRS):
        a = int(torch.randint(1, L - 1, (1,), generator=g))
        kept[i, a:] = (line[i, a:] // 2) * 2 % V
        dropped[i, a:] = (line[i, a:] // 2 * 2 + 1) % V
    return kept, dropped


base = Verse()
policy = copy.deepcopy(base)
with torch.no_grad():
    for w in policy.parameters():
        w.add_(0.02 * torch.randn_like(w))
for w in base.parameters():
    w.requires_grad_(False)

optim = torch.optim.RMSprop(policy.parameters(), lr=1.5e-3)
gen = torch.Generator().manual_seed(55)
print("pairs per batch", PAIRS, "beta", BETA)

for it in range(1, 37):
    kept, dropped = make_pairs(gen)
    with torch.no_grad():
        ref_k, ref_d = base.logp(kept), base.logp(dropped)
    pol_k, pol_d = policy.logp(kept), policy.logp(dropped)

    margin = (pol_k - ref_k) - (pol_d - ref_d)
    scaled = margin / margin.detach().std()
    loss = -F.logsigmoid(BETA * scaled).mean()

    optim.zero_grad()
    loss.backward()
    optim.step()

    with torch.no_grad():
        drift = ((policy.logp(kept) - ref_k) / (L - 1)).pow(2).mean().sqrt().item()
    note = ""
    if drift > KL_BUDGET:
        # too far from the base model: go back to it and carry on with half the rate
        policy.load_state_dict(base.state_dict())
        for group in optim.param_groups:
            group["lr"] *= 0.5
        note = "  rolled back"
    print(f"it {it:2d} loss {loss.item():.5f} accuracy {(margin > 0).float().mean().item():.2f} drift {drift:.4f}{note}")

print("absolute weights of the policy", round(sum(w.abs().sum().item() for w in policy.parameters()), 3))
