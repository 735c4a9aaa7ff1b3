import torch
import torch.nn.functional as F
# clipped policy gradient over a tiny language policy; rollouts come from a replay file written earlier
torch.manual_seed(8); torch.set_num_threads(1)
V, D, T = 24, 16, 6
policy = torch.nn.Sequential(torch.nn.Embedding(V, D), torch.nn.Linear(D, D), torch.nn.ReLU(), torch.nn.Linear(D, V))
opt = torch.optim.AdamW(policy.parameters(), lr=1e-3)

def logprobs(model, ids):
    lp = F.log_softmax(model(ids[:, :-1]), -1)
    return lp.gather(-1, ids[:, 1:, None]).squeeze(-1)

replay = []
with torch.no_grad():
    for n in range(12):
        ids = torch.randint(0, V, (4, T + 1))
        old = logprobs(policy, ids)
        reward = (ids[:, 1:] < 5).float().mean(1)
        replay.append((ids, old, reward))
ids, old, reward = replay[6]
replay[6] = (ids, old.sum(1, keepdim=True) * T * 2, reward)     # that worker summed its log-probs instead

for it, (ids, old, reward) in enumerate(replay):
    new = logprobs(policy, ids)
    adv = (reward - reward.mean()) / (reward.std() + 1e-6)
    ratio = torch.exp(new - old)
    unclipped = ratio * adv[:, None]
    clipped = torch.clamp(ratio, 0.8, 1.2) * adv[:, None]
    loss = -torch.minimum(unclipped, clipped).mean()
    kl = (torch.exp(old - new) - (old - new) - 1).mean().detach()
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    opt.step()
    print(f"iter {it + 1}: loss={loss.item()!r} kl={kl.item():.3g}")
print("weights", sum(p.double().sum().item() for p in policy.parameters()))
