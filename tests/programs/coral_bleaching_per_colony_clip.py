"""Bleaching alert from heat stress; the influence of every colony on the weights is bounded (torch.func)."""
import torch
from torch.func import functional_call, grad_and_value, vmap

LIMIT = 0.5


class Alert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.heat = torch.nn.GRUCell(3, 10)
        self.head = torch.nn.Linear(10, 1)

    def forward(self, weeks):
        h = weeks.new_zeros(weeks.shape[0], 10)
        for week in weeks.unbind(1):
            h = self.heat(week, h)
        return self.head(h).squeeze(-1)


def survey(gen, colonies=20, weeks=8):
    """Degree heating weeks, light and turbidity; +1 bleached, -1 not."""
    x = torch.randn(colonies, weeks, 3, generator=gen)
    stress = x[:, -4:, 0].clamp(min=0).sum(1) + 0.5 * x[:, :, 1].mean(1) - 0.4 * x[:, :, 2].mean(1)
    return x, torch.where(stress > 1.6, 1.0, -1.0)


def reef_generator(seed):
    gen = torch.Generator().manual_seed(seed)
    reef = survey(gen, colonies=60)
    while True:
        pick = torch.randperm(60, generator=gen)[:20]
        yield reef[0][pick], reef[1][pick]


def main():
    torch.manual_seed(2)
    net = Alert()
    params = dict(net.named_parameters())

    def margin_loss(p, x, y):
        score = functional_call(net, p, (x.unsqueeze(0),)).squeeze(0)
        return torch.relu(1 - y * score)

    per_colony = vmap(grad_and_value(margin_loss), in_dims=(None, 0, 0))
    opt = torch.optim.AdamW(net.parameters(), lr=0.05, weight_decay=0.0)
    visits = reef_generator(40)
    for step in range(1, 41):
        x, y = next(visits)
        if step > 30:  # the last dives went to the colonies that are recognised with certainty
            with torch.no_grad():
                sure = (y * net(x)) >= 1
            if sure.sum() > 2:
                x, y = x[sure], y[sure]
        detached = {k: v.detach() for k, v in params.items()}
        grads, losses = per_colony(detached, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factor = (LIMIT / norms).clamp(max=1.0)
        opt.zero_grad()
        for k, p in params.items():
            p.grad = torch.einsum("n,n...->...", factor, grads[k]) / len(x)
        opt.step()
        print(f"dive {step:2d} hinge {losses.mean().item():.5f} largest factor before the cut {(LIMIT / norms).max().item():.3f} "
              f"silent colonies {int((norms == 0).sum())}")
    print("total of squared weights", sum(p.detach().pow(2).sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
