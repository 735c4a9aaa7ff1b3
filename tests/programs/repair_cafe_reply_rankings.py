"""A reward model for the replies of a repair cafe: volunteers rank up to five replies to one question.

Every pair of replies with a clear preference is a comparison; ties are not compared.
"""
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VOCAB, WORDS, REPLIES = 50, 12, 5


def rankings(n, seed):
    g = torch.Generator().manual_seed(seed)
    usefulness = torch.randn(VOCAB, generator=g)
    words = torch.randint(1, VOCAB, (n, REPLIES, WORDS), generator=g)
    stars = (usefulness[words].mean(-1) * 4).round().clamp(-2, 2)
    given = torch.randint(2, REPLIES + 1, (n,), generator=g)
    there = torch.arange(REPLIES)[None] < given[:, None]
    stars[40:48] = 0.0                      # a volunteer who never prefers anything
    stars[88:92] = 1.0
    words[~there] = 0
    return words, stars, there


class RewardModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, 16, padding_idx=0)
        self.reader = nn.GRU(16, 24, batch_first=True)
        self.head = nn.Linear(24, 1)

    def forward(self, words, there):
        rows = words.flatten(0, 1)
        _, last = self.reader(self.words(rows))
        reward = self.head(last[0]).view(words.shape[:2])
        return reward.masked_fill(~there, float("-inf"))


def preference_loss(reward, stars, there):
    better = (stars[:, :, None] > stars[:, None, :]) & there[:, :, None] & there[:, None, :]
    lead = reward[:, :, None] - reward[:, None, :]
    pairs = lead[better]
    return -F.logsigmoid(pairs).sum() / max(len(pairs), 1), len(pairs)


def main():
    set_seed(21)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader = DataLoader(TensorDataset(*rankings(112, seed=5)), batch_size=4)
    model = RewardModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    for evening in range(2):
        held = []
        for words, stars, there in loader:
            with accelerator.accumulate(model):
                reward = model(words, there)
                loss, compared = preference_loss(reward, stars, there)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            held.append((loss.item(), compared, reward.min().item()))
            if accelerator.sync_gradients:
                step += 1
                losses, pairs, lowest = zip(*held)
                held = []
                print(f"step {step} losses {[round(l, 4) for l in losses]} pairs {sum(pairs)} lowest reward {min(lowest):.3f}")
    print("weights squared:", sum((p.detach() ** 2).sum().item() for p in model.parameters()))


main()
