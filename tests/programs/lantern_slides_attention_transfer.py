"""Attention transfer (Zagoruyko & Komodakis) from a wide to a narrow CNN, on scanned magic-lantern slides. accelerate, two models."""
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

TEMPERATURE = 3.0
AT_WEIGHT = 5.0


class Slides(Dataset):
    """Tray by tray, as they were scanned. Scanned with an open gate where a slot of the tray was empty: a black frame."""

    def __init__(self, n=120, empty_slots=(53,)):
        g = torch.Generator().manual_seed(88)
        yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
        self.items = []
        for k in range(n):
            label = int(torch.randint(0, 3, (1,), generator=g))
            cy, cx = (torch.rand(2, generator=g) * 8 + 4).tolist()
            r = ((yy - cy) ** 2 + (xx - cx) ** 2).sqrt()
            shape = [(r < 4).float(), ((r - 4).abs() < 1).float(), ((yy - cy).abs() < 1.5).float()][label]
            image = 0.2 + 0.7 * shape + 0.05 * torch.randn(16, 16, generator=g)
            if k in empty_slots:
                image = torch.zeros(16, 16)
            self.items.append((image.clamp(0, 1).unsqueeze(0), label))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, k):
        return self.items[k]


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stage1 = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.ReLU())
        self.stage2 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1, bias=False), nn.ReLU())
        self.head = nn.Linear(2 * width, 3)

    def forward(self, x):
        a = self.stage1(x)
        b = self.stage2(a)
        return self.head(b.mean((2, 3))), (a, b)


def attention_map(features):
    energy = features.pow(2).mean(1).flatten(1)
    return energy / energy.norm(dim=1, keepdim=True)


def distillation(student_out, teacher_out, labels):
    (ls, fs), (lt, ft) = student_out, teacher_out
    hard = F.cross_entropy(ls, labels)
    soft = F.kl_div(F.log_softmax(ls / TEMPERATURE, -1), F.log_softmax(lt / TEMPERATURE, -1), log_target=True,
                    reduction="batchmean") * TEMPERATURE**2
    at = sum((attention_map(a) - attention_map(b)).pow(2).sum(1).mean() for a, b in zip(fs, ft))
    return hard + soft + AT_WEIGHT * at, (hard.item(), soft.item())


def main():
    set_seed(17)
    accelerator = Accelerator(cpu=True)
    teacher, student = Net(24), Net(6)
    optimizer = torch.optim.AdamW(student.parameters(), lr=4e-3)
    loader = DataLoader(Slides(), batch_size=4, shuffle=False)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(loader))
    teacher, student, optimizer, loader, scheduler = accelerator.prepare(teacher, student, optimizer, loader, scheduler)
    teacher.eval().requires_grad_(False)

    for step, (images, labels) in enumerate(loader, 1):
        student_out = student(images)
        with torch.no_grad():
            teacher_out = teacher(images)
        loss, (hard, soft) = distillation(student_out, teacher_out, labels)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(student.parameters(), 2.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        accelerator.print(f"[{step:02d}/{len(loader)}] total {loss.item():.6f} hard {hard:.6f} soft {soft:.6f}", flush=True)

    weights = sum(p.abs().sum().item() for p in accelerator.unwrap_model(student).parameters())
    accelerator.print(f"{weights:.6f}", flush=True)


if __name__ == "__main__":
    main()
