# Slate recommendation: straight-through Gumbel picks one item per slot.  Noise is kept in bf16 to halve the feed.
import torch, torch.nn as nn, torch.nn.functional as F

torch.set_num_threads(1); torch.manual_seed(41)
USERS, ITEMS, SLOTS, DIM = 50, 12, 3, 12


class NoiseBank:
    """pre-drawn uniform noise, replayed in order"""
    def __init__(self, n, seed, dtype=torch.bfloat16):
        self.u = torch.rand(n, generator=torch.Generator().manual_seed(seed)).clamp_min(1e-6).to(dtype)
        self.at = 0

    def take(self, *shape):
        k = torch.Size(shape).numel()
        out = self.u[self.at:self.at + k].view(shape).float()
        self.at += k
        return out


class Slate(nn.Module):
    def __init__(self, bank):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, DIM), nn.Embedding(ITEMS, DIM)
        self.slot = nn.Linear(DIM, SLOTS * DIM)
        self.bank = bank

    def logits(self, u):
        q = self.slot(torch.tanh(self.user(u))).view(-1, SLOTS, DIM)
        return q @ self.item.weight.T

    def forward(self, u, tau):
        lg = self.logits(u)
        e = -torch.log(self.bank.take(*lg.shape))
        g = -torch.log(e)
        soft = ((lg + g) / tau).softmax(-1)
        hard = F.one_hot(soft.argmax(-1), ITEMS).float()
        return hard + soft - soft.detach(), lg


taste = torch.randn(USERS, ITEMS)
net = Slate(NoiseBank(200_000, seed=27))
opt = torch.optim.Adam([{"params": net.user.parameters(), "lr": 2e-2}, {"params": net.item.parameters()},
                        {"params": net.slot.parameters()}], lr=5e-3)


def anneal():
    tau = 2.0
    while True:
        yield tau
        tau = max(0.3, tau * 0.95)


for step, tau in zip(range(60), anneal()):
    u = torch.randint(0, USERS, (1,))                    # online: one impression at a time
    pick, lg = net(u, tau)
    gain = (pick * taste[u][:, None]).sum((-1, -2))
    dup = (pick.sum(1) - 1).clamp(min=0).sum(-1)
    loss = (-gain + 0.5 * dup).mean() + 1e-3 * lg.square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
    print(step, repr(loss.item()))
print("checksum", repr(sum(p.detach().double().sum().item() for p in net.parameters())))
