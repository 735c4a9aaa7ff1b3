import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class PairDataset(Dataset):
    """STS style: two sentences and a similarity grade 0..5"""

    def __init__(self, n=256, vocab=200, length=12):
        g = torch.Generator().manual_seed(21)
        self.a = torch.randint(1, vocab, (n, length), generator=g)
        self.grade = torch.randint(0, 6, (n,), generator=g)
        swap = torch.rand(n, length, generator=g) > (self.grade / 5)[:, None]
        self.b = torch.where(swap, torch.randint(1, vocab, (n, length), generator=g), self.a)
        noisy = torch.rand(n, generator=g) < 0.3
        self.grade[noisy] = 5 - self.grade[noisy]

    def __len__(self):
        return len(self.a)

    def __getitem__(self, i):
        return {"a": self.a[i], "b": self.b[i], "grade": self.grade[i]}


class SentenceEncoder(nn.Module):
    def __init__(self, vocab=200, dim=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, 4, 96, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, ids):
        h = self.encoder(self.emb(ids))
        keep = (ids != 0).unsqueeze(-1)
        return (h * keep).sum(1) / keep.sum(1)


def cosent(u, v, grade, scale):
    cos = F.cosine_similarity(u, v) * scale
    diff = cos[:, None] - cos[None, :]
    wrong_way = grade[:, None] < grade[None, :]
    return torch.log(1 + torch.exp(diff[wrong_way]).sum())


def main():
    set_seed(8)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1)
    model = SentenceEncoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(PairDataset(), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    scale, step = 20.0, 0
    for epoch in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = cosent(model(batch["a"]), model(batch["b"]), batch["grade"], scale)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            accelerator.print(f"step {step} scale {scale:.1f} loss {loss.item():.4f}")
            scale *= 1.3
    accelerator.print(sum(p.detach().pow(2).sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
