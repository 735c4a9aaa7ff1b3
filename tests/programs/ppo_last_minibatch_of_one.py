import torch, torch.nn as nn

torch.manual_seed(9)
ac = nn.ModuleDict({"pi": nn.Linear(5, 2), "v": nn.Linear(5, 1)})
opt = torch.optim.Adam(ac.parameters(), lr=1e-2)
for it in range(4):
    obs = torch.randn(33, 5)
    act = torch.randint(0, 2, (33,))
    ret = torch.randn(33)
    with torch.no_grad():
        old = torch.log_softmax(ac["pi"](obs), 1).gather(1, act[:, None])[:, 0]
    for mb in torch.randperm(33).split(16):
        adv = ret[mb] - ac["v"](obs[mb]).squeeze(-1).detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        lp = torch.log_softmax(ac["pi"](obs[mb]), 1).gather(1, act[mb][:, None])[:, 0]
        ratio = (lp - old[mb]).exp()
        pg = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        vl = (ac["v"](obs[mb]).squeeze(-1) - ret[mb]).pow(2).mean()
        loss = pg + 0.5 * vl
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(it, loss.item())
print("weights", sum(p.double().sum().item() for p in ac.parameters()))
