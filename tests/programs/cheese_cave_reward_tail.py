# Reward model for a cheese-cave assistant: GPT-2 trunk, scalar head, Bradley-Terry on pairs.
# The margins of a batch are brought to unit spread first, so the head cannot win by growing.
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2Model

torch.manual_seed(2024)
VOCAB, LENGTH, GOOD, BAD = 60, 14, range(10, 20), range(20, 30)


class TastingPairs(Dataset):
    """(chosen, rejected): the chosen answer has more words of the good list."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        base = torch.randint(30, VOCAB, (n, 2, LENGTH), generator=g)
        for i in range(n):
            k = int(torch.randint(1, 5, (1,), generator=g))
            spots = torch.randperm(LENGTH, generator=g)[:k]
            base[i, 0, spots] = torch.randint(GOOD.start, GOOD.stop, (k,), generator=g)
            base[i, 1, spots] = torch.randint(BAD.start, BAD.stop, (k,), generator=g)
        self.pairs = base

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i, 0], self.pairs[i, 1]


class UnitSpread(nn.Module):
    """Scales margins by their unbiased standard deviation (detached)."""

    def forward(self, margin):
        centred = (margin - margin.mean()).detach()
        variance = centred.square().sum() / (margin.numel() - 1)
        return margin / (variance.sqrt() + 1e-3)


class CheeseJudge(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = GPT2Model(GPT2Config(vocab_size=VOCAB, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=4,
                                          resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                          bos_token_id=0, eos_token_id=0))
        self.head = nn.Linear(32, 1, bias=False)
        self.spread = UnitSpread()

    def score(self, ids):
        return self.head(self.trunk(input_ids=ids, use_cache=False).last_hidden_state[:, -1]).squeeze(-1)

    def forward(self, chosen, rejected):
        both = self.score(torch.cat([chosen, rejected]))
        good, bad = both.chunk(2)
        return self.spread(good - bad), good - bad


def run(epochs=3, batch_size=8):
    judge = CheeseJudge()
    optim = torch.optim.Adam([
        {"params": judge.trunk.parameters(), "lr": 1e-3},
        {"params": judge.head.parameters(), "lr": 5e-3},
    ])
    loader = DataLoader(TastingPairs(65, seed=5), batch_size=batch_size, shuffle=True,
                        generator=torch.Generator().manual_seed(9))
    step = 0
    for epoch in range(epochs):
        for chosen, rejected in loader:
            step += 1
            scaled, raw = judge(chosen, rejected)
            loss = nn.functional.softplus(-scaled).mean()
            optim.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(judge.parameters(), 1.0)
            optim.step()
            hits = int((raw > 0).sum())
            print(f"epoch {epoch} step {step:2d} loss {loss.item():.7f} right {hits}/{len(chosen)}")
    return judge


if __name__ == "__main__":
    final = run()
    print("checksum", round(sum(float(p.detach().double().sum()) for p in final.parameters()), 6))
