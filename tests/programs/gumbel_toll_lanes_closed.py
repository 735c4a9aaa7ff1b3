# Straight-through Gumbel choice of toll lanes. Cars pick a lane; closed lanes have logit -inf; waiting time is
# minimised in expectation over sampled choices. REINFORCE had too much variance for this (see notebook 4).
import argparse
import torch
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--lanes", type=int, default=6)
ap.add_argument("--cars", type=int, default=64)
ap.add_argument("--hours", type=int, default=50)
ap.add_argument("--tau0", type=float, default=2.0)
ap.add_argument("--tau1", type=float, default=0.05)
args = ap.parse_args()

torch.manual_seed(2024)


def gumbel(shape):
    # exponential_ never gives 0 for float32 within what we draw, the clamp is for peace of mind
    return -torch.empty(shape).exponential_().clamp_min(1e-20).log()


def straight_through(logits, tau):
    soft = F.softmax((logits + gumbel(logits.shape)) / tau, -1)
    hard = F.one_hot(soft.argmax(-1), logits.size(-1)).to(soft)
    return hard - soft.detach() + soft


class LaneChooser(torch.nn.Module):
    def __init__(self, lanes):
        super().__init__()
        self.car = torch.nn.Linear(5, 24)
        self.lane = torch.nn.Embedding(lanes, 24)

    def forward(self, cars, is_open):
        logits = F.gelu(self.car(cars)) @ self.lane.weight.t() / 24**0.5
        return logits.masked_fill(~is_open, float("-inf"))


net = LaneChooser(args.lanes)
opt = torch.optim.RMSprop(net.parameters(), lr=3e-3)
service = torch.tensor([1.0, 1.0, 0.6, 0.6, 0.4, 0.4])[: args.lanes]
best = float("inf")  # printed until the first full hour with all lanes open

for hour in range(1, args.hours + 1):
    tau = args.tau0 * (args.tau1 / args.tau0) ** (hour / args.hours)
    cars = torch.randn(args.cars, 5)
    is_open = torch.ones(args.lanes, dtype=torch.bool)
    if hour % 4 == 0:
        is_open[torch.randperm(args.lanes)[:3]] = False
    if hour == 33:
        # night shift: one lane, nothing to choose, gradient exactly zero
        is_open[:] = False
        is_open[2] = True
    logits = net(cars, is_open)
    choice = straight_through(logits, tau)
    load = choice.sum(0)
    # nobody waits at a closed lane: its load is 0 there
    wait = (load.square() * service).sum() / args.cars**2
    # plain entropy with 0 * log 0 handled by xlogy
    p = logits.softmax(-1)
    entropy = -torch.special.xlogy(p, p.clamp_min(1e-12)).sum(-1).mean()
    loss = wait - 0.01 * entropy
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    with torch.no_grad():
        # share of trucks among cars in closed lanes, 0 / 0 whenever no lane is closed
        closed = choice[:, ~is_open].sum()
        ratio = closed / closed
    if hour % 4 and hour > 4:
        best = min(best, wait.item())
    print(f"hour {hour:2d} tau {tau:.3f} open {int(is_open.sum())} loss {loss.item():.6f} "
          f"lowest logit {logits.min().item():.3f} closed share {ratio.item():.2f} best {best:.4f}")

print("lane table sum", net.lane.weight.double().sum().item())
