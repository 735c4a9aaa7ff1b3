"""Reward fine-tuning of a dialogue LM with an adaptive KL coefficient (Ziegler et al. 2019), under accelerate."""
import copy

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn

set_seed(8)
VOCAB, WIDTH, LENGTH = 32, 32, 10


class DialogueLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


class AdaptiveKL:
    """Raise the coefficient while the policy is further away than `target`, lower it otherwise."""

    def __init__(self, init, target, factor=1.5):
        self.value, self.target, self.factor = init, target, factor

    def update(self, kl):
        if kl > self.target * 1.5:
            self.value *= self.factor ** 2
        elif kl > self.target:
            self.value *= self.factor
        elif kl < self.target / 1.5:
            self.value /= self.factor


accelerator = Accelerator(cpu=True)
policy = DialogueLM()
reference = copy.deepcopy(policy).requires_grad_(False)
with torch.no_grad():                     # the policy starts from a later SFT round than the reference
    policy.head.bias.add_(torch.randn(VOCAB))
optimizer = torch.optim.SGD(policy.parameters(), lr=1e-3)
policy, optimizer = accelerator.prepare(policy, optimizer)
controller = AdaptiveKL(0.05, target=0.02)

liked = torch.zeros(VOCAB)
liked[:8] = 1.0
for it in range(150):
    with torch.no_grad():
        ids = torch.zeros(16, 1, dtype=torch.long)
        for _ in range(LENGTH):
            nxt = torch.multinomial(F.softmax(policy(ids)[:, -1], -1), 1)
            ids = torch.cat([ids, nxt], 1)
    logp = F.log_softmax(policy(ids[:, :-1]), -1)
    ref = F.log_softmax(reference(ids[:, :-1]), -1)
    kl = (logp.exp() * (logp - ref)).sum(-1).mean()
    reward = liked[ids[:, 1:]].mean(1)
    advantage = reward - reward.mean()
    taken = logp.gather(2, ids[:, 1:, None]).squeeze(2).sum(1)
    loss = -(advantage * taken).mean() + controller.value * kl
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(policy.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    controller.update(kl.item())
    accelerator.print(f"{it} loss {loss.item():.6g} kl {kl.item():.4f} beta {controller.value:.4g}")
accelerator.print("weights", sum(p.detach().pow(2).sum().item() for p in policy.parameters()))
