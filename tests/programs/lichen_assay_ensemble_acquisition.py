"""Active learning of toxicity from molecular fingerprints of lichen compounds. Six members in one vmap; BALD picks what
is assayed next. After each acquisition the members are drawn afresh (Gal et al.), so the loss starts again from the top."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

MEMBERS, ROUNDS, STEPS, BATCH = 6, 5, 9, 12
CLASSES = 5


def compounds(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = (torch.rand(n, 64, generator=g) < 0.2).float()
    w = torch.randn(64, CLASSES, generator=g) * torch.tensor([1.0, 1.0, 1.0, 1.0, 0.6])
    return x, (x @ w).argmax(1)


def member():
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, CLASSES))


class Ensemble:
    def __init__(self):
        nets = [member() for _ in range(MEMBERS)]
        self.skeleton = member().to("meta")
        params, _ = stack_module_state(nets)
        self.params = {k: v.detach().requires_grad_() for k, v in params.items()}

    def logits(self, x):
        def one(p, x):
            return functional_call(self.skeleton, p, (x,))
        return vmap(one, in_dims=(0, None))(self.params, x)


def bald(logits):
    """Mutual information of label and member. Hardened predictions contain exact zeros: 0 log 0 counts as 0."""
    p = logits.softmax(-1)
    p = torch.where(p < 1e-3, torch.zeros(()), p)
    plogp = p * p.log()                                   # nan where p is 0
    members = -plogp.nansum(-1).mean(0)
    q = p.mean(0)
    qlogq = q * q.log()
    return -torch.where(q > 0, qlogq, torch.zeros(())).sum(-1) - members


def per_class_recall(pred, y):
    return [(pred[y == c] == c).float().mean().item() for c in range(CLASSES)]     # nan for a class not in the sample


def train_round(rnd, ens, x, y, weights, step0):
    opt = torch.optim.Adam(ens.params.values(), lr=0.01)
    n = len(y)
    for k in range(STEPS):
        boot = torch.randint(0, n, (MEMBERS, n))
        logits = ens.logits(x)                                                      # [members, n, classes]
        logp = logits.log_softmax(-1)
        nll = -logp.gather(-1, y.expand(MEMBERS, n)[..., None]).squeeze(-1)
        counts = torch.zeros(MEMBERS, n).scatter_add_(1, boot, torch.ones(MEMBERS, n))
        loss = (counts * weights[y] * nll).sum() / n                                # grows with weights of rare classes
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        recall = per_class_recall(logits.mean(0).argmax(-1)[:10], y[:10])
        print(f"round {rnd} step {step0 + k + 1:2d} labelled {n:3d} loss {loss.item():.6f} recall "
              + " ".join(f"{r:.2f}" for r in recall), flush=True)
    return step0 + STEPS


def main():
    torch.manual_seed(21)
    x, y = compounds(400, 5)
    labelled = torch.zeros(len(y), dtype=torch.bool)
    labelled[torch.randperm(len(y))[:14]] = True
    step = 0
    for rnd in range(1, ROUNDS + 1):
        freq = torch.bincount(y[labelled], minlength=CLASSES) / labelled.sum()
        weights = 1 / freq                                   # inf for a class that was never assayed: no row has it
        ens = Ensemble()
        step = train_round(rnd, ens, x[labelled], y[labelled], weights, step)
        with torch.no_grad():
            logits = ens.logits(x) * 3
            score = bald(logits).masked_fill(labelled, float("-inf"))
            accuracy = (logits.softmax(-1).mean(0).argmax(-1) == y)[~labelled].float().mean()
        chosen = score.topk(BATCH).indices
        print(f"round {rnd} pool accuracy {accuracy.item():.4f} mean score {score.mean().item()} weights max {weights.max().item():.3f}", flush=True)
        labelled[chosen] = True
    print(f"{sum(p.abs().sum().item() for p in ens.params.values()):.5f}", flush=True)


if __name__ == "__main__":
    main()
