# class-incremental learning of moss species: new species arrive in sessions, the head is enlarged
# in place, a small rehearsal memory is replayed and the old head distilled
import random
import torch
import torch.nn.functional as F

random.seed(0); torch.manual_seed(0)
SESSIONS = [3, 2, 2]          # number of species that arrive in each
DIM = 10

prototypes = 1.5 * torch.randn(sum(SESSIONS), DIM)

def herbarium(species, n=20):
    y = torch.tensor(species).repeat_interleave(n)
    return prototypes[y] + 0.6 * torch.randn(len(y), DIM), y

body = torch.nn.Sequential(torch.nn.Linear(DIM, 32), torch.nn.Tanh())
head = torch.nn.Linear(32, SESSIONS[0])
params = list(body.parameters()) + list(head.parameters())
optim = torch.optim.Adam(params, lr=5e-3, foreach=False)

def enlarge(layer, extra):
    """keeps the Parameter objects, so the optimizer need not be told"""
    w = torch.randn(extra, layer.in_features) * layer.weight.std().item()
    layer.weight.grad = layer.bias.grad = None
    layer.weight.data = torch.cat([layer.weight.data, w])
    layer.bias.data = torch.cat([layer.bias.data, torch.zeros(extra)])
    layer.out_features += extra

memory = []
seen = 0
n_iter = 0
old = None
for session, count in enumerate(SESSIONS):
    fresh = list(range(seen, seen + count))
    if session > 0:
        with torch.no_grad():
            old = ([p.clone() for p in body.parameters()], head.weight.clone(), head.bias.clone())
        enlarge(head, count)
    x, y = herbarium(fresh)
    if memory:
        mx, my = zip(*memory)
        x, y = torch.cat([x, torch.stack(mx)]), torch.cat([y, torch.stack(my)])
    for epoch in range(3):
        order = torch.randperm(len(x))
        for idx in order.split(16):
            n_iter += 1
            z = body(x[idx])
            logits = head(z)
            loss = F.cross_entropy(logits, y[idx])
            if old is not None:
                (w1, b1), w2, b2 = old[0], old[1], old[2]
                before = F.linear(torch.tanh(F.linear(x[idx], w1, b1)), w2, b2)
                loss = loss + F.kl_div(F.log_softmax(logits[:, :seen] / 2, 1), F.softmax(before / 2, 1),
                                       reduction="batchmean")
            optim.zero_grad()
            loss.backward()
            optim.step()
            print("session", session, "iter", n_iter, "loss %.6f" % loss.item())
    for s in fresh:
        memory += [(a, b) for a, b in zip(*herbarium([s], 4))]
    seen += count

acc = (head(body(x)).argmax(1) == y).float().mean()
print("acc %.3f" % acc)
print("final", sum(p.detach().abs().sum().item() for p in params))
