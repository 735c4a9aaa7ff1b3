"""Masked autoencoder on frames of a dovecote camera: small ViT, layer-wise decay of the rate, float16 with a scaler."""
import argparse

import torch
from torch import nn

SIDE, PATCH, WIDTH, DEPTH = 24, 4, 48, 3
TOKENS = (SIDE // PATCH) ** 2


class Layer(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-1, -2) / (w // self.heads) ** 0.5).softmax(-1)
        x = x + self.proj((a @ v).transpose(1, 2).reshape(b, n, w))
        return x + self.mlp(self.norm2(x))


class MaskedViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, WIDTH)
        self.places = nn.Parameter(torch.randn(TOKENS, WIDTH) * 0.02)
        self.encoder = nn.ModuleList(Layer(WIDTH) for _ in range(DEPTH))
        self.mask_token = nn.Parameter(torch.zeros(WIDTH))
        self.decoder_places = nn.Parameter(torch.randn(TOKENS, WIDTH) * 0.02, requires_grad=False)
        self.decoder = Layer(WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.pixels = nn.Linear(WIDTH, PATCH * PATCH)

    def forward(self, patches, keep):
        index = keep.unsqueeze(-1)
        x = self.embed(patches) + self.places
        x = x.gather(1, index.expand(-1, -1, WIDTH))
        for layer in self.encoder:
            x = layer(x)
        full = self.mask_token.to(x.dtype).expand(len(x), TOKENS, WIDTH)
        full = full.scatter(1, index.expand(-1, -1, WIDTH), x)
        return self.pixels(self.norm(self.decoder(full + self.decoder_places)))


def frames(n, g):
    """pigeons before a wall; the shutter is closed in some frames, which leaves every patch black"""
    yy, xx = torch.meshgrid(torch.arange(SIDE).float(), torch.arange(SIDE).float(), indexing="ij")
    out = torch.full((n, SIDE, SIDE), 0.4)
    for _ in range(3):
        cy, cx = (SIDE * torch.rand(2, n, 1, 1, generator=g)).unbind(0)
        out = out + 0.5 * torch.exp(-((yy - cy) ** 2 + 0.5 * (xx - cx) ** 2) / 12)
    out = out + 0.02 * torch.randn(out.shape, generator=g)
    out[torch.rand(n, generator=g) < 0.1] = 0.0
    p = out.view(n, SIDE // PATCH, PATCH, SIDE // PATCH, PATCH).permute(0, 1, 3, 2, 4)
    return p.reshape(n, TOKENS, PATCH * PATCH)


def parameter_groups(model, rate, decay):
    groups = [{"params": [model.embed.weight, model.embed.bias, model.places], "lr": rate * decay ** (DEPTH + 1)}]
    for i, layer in enumerate(model.encoder):
        groups.append({"params": list(layer.parameters()), "lr": rate * decay ** (DEPTH - i)})
    tail = [model.mask_token, *model.decoder.parameters(), *model.norm.parameters(), *model.pixels.parameters()]
    return groups + [{"params": tail, "lr": rate}]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=45)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--rate", type=float, default=3e-3)
    ap.add_argument("--layer-decay", type=float, default=0.65)
    ap.add_argument("--mask", type=float, default=0.6)
    a = ap.parse_args()
    torch.manual_seed(60)
    g = torch.Generator().manual_seed(61)
    model = MaskedViT()
    optimizer = torch.optim.AdamW(parameter_groups(model, a.rate, a.layer_decay), betas=(0.9, 0.95), weight_decay=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 20, growth_interval=12)
    kept = int(TOKENS * (1 - a.mask))
    for step in range(1, a.steps + 1):
        patches = frames(a.batch, g)
        keep = torch.rand(a.batch, TOKENS, generator=g).argsort(1)[:, :kept]
        hidden = torch.ones(a.batch, TOKENS).scatter(1, keep, 0.0)
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(patches, keep)
        mean, var = patches.mean(-1, keepdim=True), patches.var(-1, keepdim=True)
        target = (patches - mean) / (var + 1e-4).sqrt()
        error = (out.float() - target).square().mean(-1)
        loss = (error * hidden).sum() / hidden.sum()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        print(f"{step:3d} loss {loss.item():.6f} norm {norm.item():.4f} scale {scaler.get_scale():.0f}", flush=True)
    print(f"weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
