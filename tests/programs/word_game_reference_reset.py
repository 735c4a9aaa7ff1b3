"""REINFORCE on a small letter policy with a Pinsker trust region sqrt(KL / 2) towards a reference policy; as in
prolonged RL training the reference is replaced by the current policy from time to time (accelerate loop)."""
import copy
import os

os.environ["DS_ACCELERATOR"] = "cpu"
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

LETTERS = "abcdefghijklmnop"
VOWEL = torch.tensor([c in "aeio" for c in LETTERS])
LENGTH, BETA, RESET_EVERY = 7, 0.3, 16


class LetterPolicy(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.letters = torch.nn.Embedding(len(LETTERS), width)
        self.memory = torch.nn.GRU(width, width, batch_first=True)
        self.head = torch.nn.Linear(width, len(LETTERS))

    def forward(self, ids):
        states, _ = self.memory(self.letters(ids))
        return torch.log_softmax(self.head(states), dim=-1)


@torch.no_grad()
def write(policy, first):
    word = first
    for _ in range(LENGTH):
        logp = policy(word)[:, -1]
        gumbel = -torch.log(-torch.log(torch.rand_like(logp).clamp(1e-6, 1 - 1e-6)))
        word = torch.cat([word, (logp + gumbel).argmax(-1, keepdim=True)], dim=1)
    return word


def points(words):
    v = VOWEL[words]
    return (v[:, 1:] != v[:, :-1]).float().mean(1)     # vowels and consonants take turns


def main():
    set_seed(13)
    accelerator = Accelerator(cpu=True)
    reference = LetterPolicy().requires_grad_(False)
    policy = copy.deepcopy(reference).requires_grad_(True)
    torch.nn.init.normal_(policy.head.weight, std=0.1)  # a fresh head for the game
    starts = TensorDataset(torch.randint(0, len(LETTERS), (64 * 40, 1)))
    policy, optimizer, loader = accelerator.prepare(
        policy, torch.optim.Adam(policy.parameters(), lr=1e-2), DataLoader(starts, batch_size=64))
    for step, (first,) in enumerate(loader, start=1):
        if step % RESET_EVERY == 0:
            reference.load_state_dict(accelerator.unwrap_model(policy).state_dict())
        words = write(policy, first)
        reward = points(words)
        logp = policy(words[:, :-1])
        with torch.no_grad():
            ref_logp = reference(words[:, :-1])
        chosen = logp.gather(-1, words[:, 1:, None]).squeeze(-1).sum(1)
        surrogate = -((reward - reward.mean()) * chosen).mean()
        kl = (logp.exp() * (logp - ref_logp)).sum(-1).mean()
        trust = torch.sqrt(kl / 2)
        loss = surrogate + BETA * trust
        accelerator.print(f"step {step} loss {loss.item():.6f} reward {reward.mean().item():.4f} trust {trust.item():.5f}")
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    accelerator.print("final", sum(p.detach().abs().sum().item() for p in policy.parameters()))


main()
