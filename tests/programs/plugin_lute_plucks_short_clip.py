"""Which string was plucked?  A little framework of plugins: data, model and loss are modules of a package that is laid
out on disk and found by name, so that the lab can drop in its own files.  This file carries the stock plugins."""
import atexit
import importlib
import pathlib
import shutil
import sys
import tempfile
import textwrap

import torch

STOCK = {
    "__init__": """
        REGISTRY = {}

        def register(kind, name):
            def deco(obj):
                REGISTRY[kind, name] = obj
                return obj
            return deco
    """,
    "plucks": """
        import math
        import torch
        from . import register

        PITCH = [0.11, 0.147, 0.196, 0.233]

        @register("data", "plucks")
        def plucks(steps, batch, seed):
            g = torch.Generator().manual_seed(seed)
            for step in range(steps):
                y = torch.randint(0, 4, (batch,), generator=g)
                # clips of one reel are cut to one length; the onset finder decides where
                length = int(torch.randint(90, 160, (1,), generator=g))
                if step == 16:
                    length = 22          # reel 17: the finder took the fret noise for the next pluck
                t = torch.arange(length)
                f = torch.tensor(PITCH)[y][:, None]
                x = torch.exp(-t / 60.0) * torch.sin(2 * math.pi * f * t + torch.rand(batch, 1, generator=g))
                yield x[:, None] + 0.05 * torch.randn(batch, 1, length, generator=g), y
    """,
    "resonator": """
        import torch
        from torch import nn
        from . import register

        @register("model", "resonator")
        class Resonator(nn.Module):
            def __init__(self, width=12, strings=4):
                super().__init__()
                self.attack = nn.Conv1d(1, width, 9, stride=2)
                self.body = nn.Conv1d(width, width, 7, stride=2, dilation=1)
                self.sound = nn.Linear(width, strings)

            def forward(self, x):
                h = torch.relu(self.attack(x))
                h = torch.relu(self.body(h))
                h = nn.functional.avg_pool1d(h, 4)
                return self.sound(h.mean(-1))
    """,
    "losses": """
        import torch
        from torch.nn import functional as F
        from . import register

        @register("loss", "soft_margin")
        def soft_margin(logits, y):
            true = logits.gather(1, y[:, None])
            return F.softplus(1.0 + logits - true).sum(1).mean() - F.softplus(torch.tensor(1.0))
    """,
}

CONFIG = {"data": ("plucks", {"steps": 40, "batch": 24, "seed": 5}), "model": ("resonator", {"width": 10}),
          "loss": ("soft_margin", {}), "optim": {"lr": 0.01, "weight_decay": 1e-3}}


def lay_out(root: pathlib.Path, package: str):
    home = root / package
    home.mkdir()
    for name, text in STOCK.items():
        (home / f"{name}.py").write_text(textwrap.dedent(text).lstrip())
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    pkg = importlib.import_module(package)
    for name in STOCK:
        if not name.startswith("_"):
            importlib.import_module(f"{package}.{name}")
    return pkg.REGISTRY


def run(registry):
    torch.manual_seed(40)
    torch.set_num_threads(1)

    def build(kind):
        name, kwargs = CONFIG[kind]
        return registry[kind, name], kwargs

    make, kw = build("model")
    model = make(**kw)
    loss_fn, _ = build("loss")
    opt = torch.optim.AdamW(model.parameters(), **CONFIG["optim"])
    feed, kw = build("data")
    for step, (x, y) in enumerate(feed(**kw), 1):
        logits = model(x)
        loss = loss_fn(logits, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        hit = (logits.argmax(1) == y).float().mean()
        print(f"{step:3d} len {x.shape[-1]:3d} loss {loss.item():.6f} acc {hit.item():.3f}", flush=True)
    print(f"weights {sum(p.sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    shelf = tempfile.mkdtemp(prefix="luthier")
    atexit.register(shutil.rmtree, shelf)
    run(lay_out(pathlib.Path(shelf), "luthier"))
