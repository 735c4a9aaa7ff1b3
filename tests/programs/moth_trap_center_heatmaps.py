from dataclasses import dataclass
import numpy as np
import torch, torch.nn as nn
import torch.nn.functional as F


@dataclass
class Cfg:
	seed: int = 8
	side: int = 48
	stride: int = 4
	frames: int = 88
	batch: int = 4
	lr: float = 2e-3
	warmup: int = 5


class LightSheet:
	"""Photographs of the white sheet of a moth trap: dark ellipses on a bright ground."""

	def __init__(self, cfg):
		rng = np.random.default_rng(cfg.seed)
		self.images, self.boxes = [], []
		for i in range(cfg.frames):
			img = 0.9 + 0.03 * rng.standard_normal((cfg.side, cfg.side)).astype(np.float32)
			found = []
			for _ in range(rng.integers(1, 4)):
				w, h = rng.integers(14, 24, 2)
				if i == 58 and not found:
					w, h = 3, 9                     # a plume moth
				x = rng.integers(w // 2 + 1, cfg.side - w // 2 - 1)
				y = rng.integers(h // 2 + 1, cfg.side - h // 2 - 1)
				yy, xx = np.mgrid[:cfg.side, :cfg.side]
				img[((xx - x) / (w / 2)) ** 2 + ((yy - y) / (h / 2)) ** 2 <= 1] = rng.uniform(0.2, 0.5)
				found.append((x, y, w, h))
			self.images.append(torch.from_numpy(img)[None])
			self.boxes.append(found)


class CenterHead(nn.Module):
	def __init__(self):
		super().__init__()
		self.stem = nn.Sequential(nn.Conv2d(1, 12, 5, 2, 2), nn.BatchNorm2d(12), nn.SiLU(), nn.Conv2d(12, 16, 3, 2, 1), nn.SiLU())
		self.heat = nn.Conv2d(16, 1, 3, 1, 1)
		self.size = nn.Conv2d(16, 2, 1)
		nn.init.constant_(self.heat.bias, -2.0)

	def forward(self, x):
		h = self.stem(x)
		return self.heat(h)[:, 0], self.size(h)


class MothTrainer:
	def __init__(self, cfg: Cfg):
		self.cfg = cfg
		torch.manual_seed(cfg.seed)
		self.data = LightSheet(cfg)
		self.net = CenterHead()
		self.optim = torch.optim.RMSprop(self.net.parameters(), lr=cfg.lr, momentum=0.5)
		self.k = 0

	def splat(self, target, cx, cy, w, h):
		radius = int(0.3 * min(w, h))
		sigma = radius / 3
		n = target.shape[0]
		yy, xx = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
		d2 = ((xx - cx) ** 2 + (yy - cy) ** 2).float()
		bump = torch.exp(-d2 / (2 * sigma ** 2))
		return torch.maximum(target, bump)

	def encode(self, boxes):
		n = self.cfg.side // self.cfg.stride
		heat, size, mask = torch.zeros(n, n), torch.zeros(2, n, n), torch.zeros(n, n)
		for x, y, w, h in boxes:
			cx, cy = int(x) // self.cfg.stride, int(y) // self.cfg.stride
			heat = self.splat(heat, cx, cy, int(w), int(h))
			size[:, cy, cx] = torch.tensor([w, h]).float() / self.cfg.side
			mask[cy, cx] = 1
		return heat, size, mask

	def heat_loss(self, logit, target):
		p = torch.sigmoid(logit).clamp(1e-4, 1 - 1e-4)
		peak = (target == 1).float()
		loss = -torch.where(peak > 0, (1 - p) ** 2 * p.log(), (1 - target) ** 4 * p ** 2 * (1 - p).log())
		return loss.sum() / peak.sum().clamp(min=1)

	def warm(self):
		for g in self.optim.param_groups:
			g["lr"] = self.cfg.lr * min(1.0, (self.k + 1) / self.cfg.warmup)

	def one(self, lo):
		self.warm()
		x = torch.stack(self.data.images[lo:lo + self.cfg.batch])
		heat, size, mask = map(torch.stack, zip(*map(self.encode, self.data.boxes[lo:lo + self.cfg.batch])))
		logit, wh = self.net(x)
		loss_h = self.heat_loss(logit, heat)
		loss_s = (F.l1_loss(wh, size, reduction="none").sum(1) * mask).sum() / mask.sum()
		self.optim.zero_grad()
		(loss_h + loss_s).backward()
		self.optim.step()
		self.k += 1
		print(f"batch {self.k}: heat={loss_h.item():.6f} size={loss_s.item():.6f}")

	def fit(self):
		for lo in range(0, self.cfg.frames, self.cfg.batch):
			self.one(lo)
		print("final", sum(float(p.detach().abs().sum()) for p in self.net.parameters()))


MothTrainer(Cfg()).fit()
