"""Masked-residue pre-training of a very small ESM on venom peptides, many of them only a few residues long."""
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import EsmConfig, EsmForMaskedLM

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
PAD, MASK = 0, 1
OFFSET = 2


class Peptides(Dataset):
    def __init__(self, n=512, seed=3):
        g = torch.Generator().manual_seed(seed)
        motif = torch.tensor([RESIDUES.index(c) for c in "GCCSDPRCAWRC"])
        self.rows = []
        for _ in range(n):
            length = 3 + int(torch.randint(0, 12, (1,), generator=g))
            start = int(torch.randint(0, len(motif), (1,), generator=g))
            row = motif[(start + torch.arange(length)) % len(motif)].clone()
            noise = torch.rand(length, generator=g) < 0.15
            row[noise] = torch.randint(0, 20, (int(noise.sum()),), generator=g)
            self.rows.append(row + OFFSET)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class MaskResidues:
    def __init__(self, probability, seed):
        self.probability, self.g = probability, torch.Generator().manual_seed(seed)

    def __call__(self, rows):
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), PAD)
        for i, row in enumerate(rows):
            ids[i, :len(row)] = row
        present = ids != PAD
        chosen = (torch.rand(ids.shape, generator=self.g) < self.probability) & present
        labels = torch.where(chosen, ids, -100)
        return {"input_ids": ids.masked_fill(chosen, MASK), "attention_mask": present.long(), "labels": labels}


def main(steps=30, accumulate=2, seed=11):
    torch.manual_seed(seed)
    config = EsmConfig(vocab_size=22, pad_token_id=PAD, mask_token_id=MASK, hidden_size=32, num_hidden_layers=2,
                       num_attention_heads=2, intermediate_size=64, max_position_embeddings=32,
                       position_embedding_type="rotary", token_dropout=True, hidden_dropout_prob=0.0,
                       attention_probs_dropout_prob=0.0)
    model = EsmForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(Peptides(), batch_size=8, shuffle=True, drop_last=True, collate_fn=MaskResidues(0.3, seed=9),
                        generator=torch.Generator().manual_seed(seed))
    batches = iter(loader)
    for step in range(1, steps + 1):
        total = 0.0
        for _ in range(accumulate):
            loss = model(**next(batches)).loss / accumulate
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {total:.4f} grad {norm.item():.3f}", flush=True)
    print(f"{sum(p.detach().double().norm().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
