# Short weather texts for pagers: a GRU writes words, a rule scores the text, groups of eight texts per
# situation are compared with one another (group-relative policy gradient, two inner epochs, clipped ratio).
from dataclasses import dataclass

import torch
import torch.nn as nn

WORDS = ["<end>", "rain", "sun", "snow", "fog", "wind", "frost", "hail", "storm", "north", "south", "east", "west",
         "today", "tonight", "soon", "later", "heavy", "light", "some", "more", "and"]
END = 0


@dataclass
class Setup:
    steps: int = 48
    prompts: int = 12
    group: int = 8
    max_words: int = 10
    lr: float = 6e-3
    clip: float = 0.2
    length_price: float = 0.12
    seed: int = 4


class Pager(nn.Module):
    def __init__(self, situations=8, width=48):
        super().__init__()
        self.situation = nn.Embedding(situations, width)
        self.word = nn.Embedding(len(WORDS) + 1, width)
        self.cell = nn.GRUCell(width, width)
        self.out = nn.Linear(width, len(WORDS))
        with torch.no_grad():
            self.out.bias[END] = -5.0          # begin with talkative texts

    def start(self, situation):
        return torch.tanh(self.situation(situation)), torch.full_like(situation, len(WORDS))

    def forward(self, situation, texts):
        state, word = self.start(situation)
        steps = []
        for k in range(texts.shape[1]):
            state = self.cell(self.word(word), state)
            steps.append(self.out(state).log_softmax(-1))
            word = texts[:, k]
        return torch.stack(steps, 1).gather(-1, texts[..., None]).squeeze(-1)

    @torch.no_grad()
    def write(self, situation, length, generator):
        state, word = self.start(situation)
        over = torch.zeros_like(situation, dtype=torch.bool)
        texts = []
        for _ in range(length):
            state = self.cell(self.word(word), state)
            noise = torch.rand(len(state), len(WORDS), generator=generator).clamp(1e-7, 1 - 1e-7)
            word = (self.out(state) - (-noise.log()).log()).argmax(-1)
            word = torch.where(over, torch.full_like(word, END), word)
            over = over | (word == END)
            texts.append(word)
        return torch.stack(texts, 1)


def score(situation, text, price):
    """Two points for the word of the situation, one for a direction; every word costs."""
    words = [WORDS[i] for i in text if i != END]
    points = 0.0
    if WORDS[1 + situation] in words:
        points += 2.0
    if any(w in ("north", "south", "east", "west") for w in words):
        points += 0.5
    return points - price * len(words)


def text_logp(logp, mask):
    # mean over the words of a text, so that long texts do not weigh more
    return (logp * mask).sum(1) / mask.sum(1)


def main(cfg):
    torch.manual_seed(cfg.seed)
    generator = torch.Generator().manual_seed(cfg.seed + 1)
    policy = Pager()
    optimizer = torch.optim.Adam(policy.parameters(), lr=cfg.lr)
    for step in range(1, cfg.steps + 1):
        prompts = torch.randint(0, 8, (cfg.prompts,), generator=generator)
        situation = prompts.repeat_interleave(cfg.group)
        texts = policy.write(situation, cfg.max_words, generator)
        rewards = torch.tensor([score(s, t, cfg.length_price) for s, t in zip(situation.tolist(), texts.tolist())])
        grouped = rewards.view(cfg.prompts, cfg.group)
        advantage = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
        advantage = advantage.view(-1)

        mask = (texts != END).float()
        with torch.no_grad():
            old = text_logp(policy(situation, texts), mask)
        ratio = (text_logp(policy(situation, texts), mask) - old).exp()
        clipped = ratio.clamp(1 - cfg.clip, 1 + cfg.clip)
        loss = -torch.min(ratio * advantage, clipped * advantage).mean()

        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        sample = " ".join(WORDS[i] for i in texts[0].tolist() if i != END)
        print(f"{step:3d} loss {loss.item():+.7f} reward {rewards.mean().item():.4f} "
              f"words {mask.sum(1).mean().item():.3f} | {WORDS[1 + situation[0].item()]}: {sample}", flush=True)
    print("sum of weights", round(sum(p.detach().abs().sum().item() for p in policy.parameters()), 4))


if __name__ == "__main__":
    main(Setup())
