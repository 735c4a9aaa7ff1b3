"""Kelp canopy segmentation on drone tiles, in survey order, with gradient accumulation."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

CLASSES = ["cloud", "water", "kelp", "rock"]
SIZE = 20
TILES = 304
GLARE = range(148, 152)      # the low sun over the bay: whole tiles without a judgement


class SurveyTiles(Dataset):
    def __init__(self, seed):
        g = torch.Generator().manual_seed(seed)
        colours = torch.tensor([[0.9, 0.9, 0.9], [0.1, 0.2, 0.4], [0.3, 0.4, 0.1], [0.5, 0.4, 0.4]])
        rough = torch.randn(TILES, 3, 5, 5, generator=g)
        field = F.interpolate(rough, size=SIZE, mode="bilinear", align_corners=False)
        labels = field.argmax(1) + 1
        cloud = F.interpolate(torch.randn(TILES, 1, 3, 3, generator=g), size=SIZE, mode="bilinear")[:, 0] > 0.8
        labels[cloud] = 0
        for t in GLARE:
            labels[t] = 0
        image = colours[labels].permute(0, 3, 1, 2)
        self.image = image + 0.2 * torch.randn(image.shape, generator=g)
        self.labels = labels

    def __len__(self):
        return TILES

    def __getitem__(self, i):
        return {"image": self.image[i], "labels": self.labels[i]}


class Block(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)
        self.norm = nn.GroupNorm(4, cout)

    def forward(self, x):
        return F.gelu(self.norm(self.conv(x)))


class KelpNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.down = Block(3, width)
        self.middle = Block(width, 2 * width)
        self.up = Block(3 * width, width)
        self.out = nn.Conv2d(width, len(CLASSES), 1)

    def forward(self, x):
        a = self.down(x)
        b = self.middle(F.avg_pool2d(a, 2))
        return self.out(self.up(torch.cat([a, F.interpolate(b, scale_factor=2)], dim=1)))


def class_weights(labels):
    """Inverse square root frequency; cloud is not a class that we want to learn."""
    counts = torch.bincount(labels.flatten(), minlength=len(CLASSES)).float()
    weights = counts.sum().sqrt() / counts.sqrt()
    weights[0] = 0.0
    return weights / weights.sum()


def main():
    set_seed(41)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    data = SurveyTiles(41)
    weights = class_weights(data.labels)
    loader = DataLoader(data, batch_size=2, shuffle=False)
    model = KelpNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    update, window = 0, []
    for batch in loader:
        with accelerator.accumulate(model):
            logits = model(batch["image"])
            loss = F.cross_entropy(logits, batch["labels"], weight=weights)
            accelerator.backward(loss)
            window.append(loss.item())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            update += 1
            accelerator.print(f"update {update} loss {sum(window) / len(window):.6f}", flush=True)
            window = []
    total = sum(p.detach().abs().sum() for p in accelerator.unwrap_model(model).parameters())
    accelerator.print(f"{total.item():.5f}")


if __name__ == "__main__":
    main()
