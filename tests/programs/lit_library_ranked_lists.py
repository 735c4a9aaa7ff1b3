import logging
import warnings

warnings.filterwarnings("ignore")
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import lightning as L

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
NEG = float("-inf")


class Shelves(Dataset):
    """one query to the catalogue with 3 to 9 books, graded 0..3 by the librarian"""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        taste = torch.randn(6, generator=g)
        self.rows = []
        for q in range(n):
            k = int(torch.randint(3, 10, (1,), generator=g))
            x = torch.randn(k, 6, generator=g)
            grade = (x @ taste + 0.3 * torch.randn(k, generator=g)).clamp(0, 3).round()
            if 40 <= q < 48:
                grade = torch.zeros(k)
            self.rows.append((x, grade))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def pad(rows):
    k = max(len(g) for _, g in rows)
    x = torch.zeros(len(rows), k, 6)
    grade = torch.full((len(rows), k), NEG)
    for i, (a, g) in enumerate(rows):
        x[i, : len(g)] = a
        grade[i, : len(g)] = g
    return x, grade


class ListNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.scorer = nn.Sequential(nn.Linear(6, 16), nn.ELU(), nn.Linear(16, 1))

    def training_step(self, batch, i):
        x, grade = batch
        here = grade > NEG
        judged = here & (grade > 0)
        keep = judged.any(1)
        if not keep.any():
            print(f"{i + 1:3d}  nothing lent in this batch")
            return None
        x, grade, here = x[keep], grade[keep], here[keep]
        s = self.scorer(x).squeeze(-1).masked_fill(~here, NEG)
        want = torch.softmax(grade, 1)
        logp = torch.log_softmax(s, 1)
        ce = -(want * torch.where(here, logp, torch.zeros(()))).sum(1)
        loss = ce.mean() - torch.special.entr(want).sum(1).mean()
        print(f"{i + 1:3d}  listnet {loss.item():.5f}  of {int(keep.sum())} queries")
        return loss

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=0.02)
        return [opt], [{"scheduler": torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, 30), "interval": "step"}]


def main():
    L.seed_everything(8, verbose=False)
    data = DataLoader(Shelves(8 * 34, 2), batch_size=8, collate_fn=pad)
    model = ListNet()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, data)
    print("absolute weights of the scorer", sum(p.abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
