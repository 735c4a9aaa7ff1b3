# Captions for harbour pictures; the search itself is trained (an update where the right words fall off the beam).
import torch
import torch.nn as nn

torch.manual_seed(3)
WORDS = ["<s>", "red", "blue", "old", "boat", "ferry", "crane", "at", "near", "quay", "dawn", "dusk"]
V, BEAM, MARGIN = len(WORDS), 3, 0.2
ATTRS = [[1, 2, 3], [4, 5, 6], [7, 8], [9, 10, 11]]
NEG = float("-inf")

see = nn.Linear(11, 24)
words = nn.Embedding(V, 12)
cell = nn.GRUCell(12, 24)
out = nn.Linear(24, V)
everything = nn.ModuleList([see, words, cell, out])


def picture():
    gold = [a[int(torch.randint(len(a), ()))] for a in ATTRS]
    x = 0.15 * torch.randn(11)
    for w in gold:
        x[w - 1] += 1.0
    return x, gold


def extend(score, state, last, used):
    state = cell(words(torch.tensor(last)), state)
    logits = out(state).clone()
    logits[:, 0] = NEG
    for i, u in enumerate(used):
        logits[i, u] = NEG
    return score[:, None] + logits, state


def violations(x, gold):
    start = torch.tanh(see(x))[None]
    g_state, g_score, g_used = start, torch.zeros(1), []
    score = torch.tensor([0.0] + [NEG] * (BEAM - 1))
    state, last, used = start.expand(BEAM, -1), [0] * BEAM, [[] for _ in range(BEAM)]
    found = []
    for t, w in enumerate(gold):
        g_all, g_state = extend(g_score, g_state, [0 if t == 0 else gold[t - 1]], [g_used])
        g_score, g_used = g_all[:, w], g_used + [w]
        table, state = extend(score, state, last, used)
        top, idx = table.flatten().topk(BEAM)
        rows, cols = (idx // V).tolist(), (idx % V).tolist()
        last_place = top[0] if t == len(gold) - 1 else top[-1]
        right_on_top = t == len(gold) - 1 and used[rows[0]] + [cols[0]] == gold
        slack = MARGIN - (g_score[0] - last_place)
        if slack > 0 and not right_on_top:
            found.append(slack)
            score = torch.cat([g_score, torch.full((BEAM - 1,), NEG)])
            state, last, used = g_state.expand(BEAM, -1), [w] * BEAM, [list(g_used)] * BEAM
        else:
            score, state, last = top, state[rows], cols
            used = [used[r] + [c] for r, c in zip(rows, cols)]
    return found


opt = torch.optim.Adagrad(everything.parameters(), lr=0.25)
updates = 0
for it in range(1, 46):
    found = [v for _ in range(2) for v in violations(*picture())]
    if not found:
        print(f"pictures {it:2d}: 0 violations, loss 0")
        continue
    loss = torch.stack(found).sum() / 2
    opt.zero_grad()
    loss.backward()
    opt.step()
    updates += 1
    print(f"pictures {it:2d}: {len(found)} violations, loss {loss.item():.4f}")
print(f"updates {updates}")
print("sum of squared weights", round(sum(p.detach().pow(2).sum().item() for p in everything.parameters()), 4))
