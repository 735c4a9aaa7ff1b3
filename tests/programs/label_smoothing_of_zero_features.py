import torch, torch.nn as nn

torch.manual_seed(13)
body = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
head = nn.Linear(32, 5)


class W(nn.Module):
    def __init__(s):
        super().__init__()
        s.b, s.h = body, head

    def feats(s, x):
        return s.b(x)


w = W()
opt = torch.optim.AdamW(w.parameters(), 1e-3)
for i in range(9):
    x, y = torch.randn(6, 10), torch.randint(0, 5, (6,))
    f = w.feats(x)
    z = (
        torch.nn.functional.normalize(f, eps=0.0)
        if i != 5
        else torch.nn.functional.normalize(f * (torch.arange(6) != 2)[:, None], eps=0.0)
    )
    loss = nn.functional.cross_entropy(w.h(z), y, label_smoothing=0.1, ignore_index=-1)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item())
