import os

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
from itertools import product

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForMaskedLM

K = 3
VOCAB = ["[PAD]", "[MASK]"] + ["".join(p) for p in product("ACGT", repeat=K)]


class Contigs(Dataset):
    """k-mers of made-up contigs with repeats, one k-mer in six masked"""

    def __init__(self, n=40 * 8, length=20):
        g = torch.Generator().manual_seed(64)
        motif = torch.randint(2, len(VOCAB), (5, length), generator=g)
        family = torch.randint(0, 5, (n,), generator=g)
        mutated = torch.rand(n, length, generator=g) < 0.05
        ids = torch.where(mutated, torch.randint(2, len(VOCAB), (n, length), generator=g), motif[family])
        masked = torch.rand(n, length, generator=g) < 1 / 6
        masked[:, 7] = True
        self.labels = torch.where(masked, ids, -100)
        self.ids = torch.where(masked, 1, ids)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


def warm_up(optimizer, contigs=2000, growth=1.2):
    """the rate grows until so many contigs were seen, then it is held"""
    return torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda k: growth if k * 8 < contigs else 1.0)


def main():
    torch.manual_seed(12)
    config = BertConfig(vocab_size=len(VOCAB), hidden_size=24, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=48, max_position_embeddings=20, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0)
    model = BertForMaskedLM(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    scheduler = warm_up(optimizer)
    smooth = None
    for step, batch in enumerate(DataLoader(Contigs(), batch_size=8), 1):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        smooth = loss.item() if smooth is None else 0.8 * smooth + 0.2 * loss.item()
        print(f"step {step} | masked k-mer loss {loss.item():.4f} | smoothed {smooth:.4f} | lr {scheduler.get_last_lr()[0]:.5f}")
        scheduler.step()
    print("squares of the weights add up to", sum(p.detach().double().square().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
