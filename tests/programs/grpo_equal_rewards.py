import copy

import torch
import torch.nn as nn


class TinyPolicy(nn.Module):
    def __init__(self, vocab=16, dim=12):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        return self.lm_head(self.gru(self.emb(ids))[0])

    @torch.no_grad()
    def generate(self, prompt, n):
        ids = prompt
        for _ in range(n):
            probs = self(ids)[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(probs, 1)], dim=1)
        return ids


def per_token_logps(model, ids):
    return model(ids[:, :-1]).log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)


def reward(completion, target):
    return (completion == target).any(dim=1).float()


class GRPO:
    def __init__(self, policy, beta=0.04, group=6):
        self.policy, self.ref = policy, copy.deepcopy(policy).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-3)
        self.beta, self.group = beta, group

    def step(self, prompt, target):
        ids = self.policy.generate(prompt.repeat(self.group, 1), 8)
        r = reward(ids[:, prompt.shape[1]:], target)
        advantage = (r - r.mean()) / r.std()
        logps = per_token_logps(self.policy, ids)
        with torch.no_grad():
            ref_logps = per_token_logps(self.ref, ids)
        kl = torch.exp(ref_logps - logps) - (ref_logps - logps) - 1
        loss = -(torch.exp(logps - logps.detach()) * advantage[:, None] - self.beta * kl).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item(), r.mean().item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(17)
    trainer = GRPO(TinyPolicy())
    for i in range(9):
        loss, mean_reward = trainer.step(torch.randint(0, 16, (1, 3)), target=i % 16)
        print({"step": i + 1, "loss": loss, "reward": mean_reward})
    print("weights", sum(p.double().sum().item() for p in trainer.policy.parameters()))
