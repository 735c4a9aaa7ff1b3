from accelerate import Accelerator
from accelerate.utils import set_seed
import torch
from torch import nn
import torch.nn.functional as F


class Routed(nn.Module):
    """top-2 of six experts, each takes at most `room` readings; readings that find no room pass through"""

    def __init__(self, width, experts=6, room=14):
        super().__init__()
        self.room = room
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, width))
                                     for _ in range(experts))
        self.balance = None
        self.load = None

    def forward(self, h):
        logits = self.router(h)
        best = logits.topk(2, dim=-1).indices
        chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(1, best, True)
        kept = chosen & (chosen.cumsum(0) <= self.room)
        alive = kept.any(-1)
        # rows without any seat keep their plain scores here and are dropped below
        seats = torch.where(alive[:, None], kept, True)
        gates = logits.masked_fill(~seats, float("-inf")).softmax(-1)
        gates = gates * alive[:, None]
        out = h
        for e, expert in enumerate(self.experts):
            rows = kept[:, e].nonzero().flatten()
            if len(rows):
                out = out.index_add(0, rows, gates[rows, e, None] * expert(h[rows]))
        share = chosen.float().mean(0)
        self.balance = len(self.experts) * (share * logits.softmax(-1).mean(0)).sum() / 2
        self.load = kept.sum(0)
        return out


class Flux(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(5, 12)
        self.routed = Routed(12)
        self.leave = nn.Linear(12, 2)

    def forward(self, x):
        mean, log_sigma = self.leave(self.routed(self.enter(x))).unbind(-1)
        return mean, log_sigma.clamp(-5, 3)


def bog(n):
    x = torch.randn(n, 5)
    regime = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    slope = torch.tensor([0.1, 0.5, -0.4, 0.02])[regime]
    return x, slope * x[:, 2] + 0.02 * torch.randn(n)


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(2024)
    model = Flux()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = torch.utils.data.TensorDataset(*bog(64 * 32))
    loader = torch.utils.data.DataLoader(data, batch_size=32)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    updates = 0
    for x, y in loader:
        with accelerator.accumulate(model):
            mean, log_sigma = model(x)
            nll = F.gaussian_nll_loss(mean, y, (2 * log_sigma).exp())
            loss = nll + 0.05 * model.routed.balance
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad(set_to_none=True)
        if not accelerator.sync_gradients:
            continue
        updates += 1
        load = model.routed.load.tolist()
        accelerator.print(f"update {updates} nll {nll.item():.4f} loss {loss.item():.4f} load {load}")
        if updates in (11, 22):
            idle = load.index(min(load))
            for layer in model.routed.experts[idle]:
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
                    opt.state.pop(layer.weight, None)
                    opt.state.pop(layer.bias, None)
            with torch.no_grad():
                model.routed.router.weight[idle] = 0
            accelerator.print("expert", idle, "starts anew")
    accelerator.print("total of squared weights %.4f" % sum(p.detach().pow(2).sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
