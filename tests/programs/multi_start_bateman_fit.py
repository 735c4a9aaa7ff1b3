"""Oral absorption (Bateman function), eight starts at a time with torch.func.

Nothing calls backward(): grad_and_value is vmapped over the starts, and the result is handed to
the optimizer. Twice an epoch the worst half is thrown away and sown anew.
"""
import torch
from torch.func import grad_and_value, vmap

N_STARTS = 8
DOSE = 320.0
HOURS = torch.tensor([0.0, 0.25, 0.5, 1.0, 2.0, 3.5, 5.0, 7.0, 9.0, 12.0, 24.0])


def bateman(theta, t):
    ka, ke, vol = torch.exp(theta["log_ka"]), torch.exp(theta["log_ke"]), torch.exp(theta["log_v"])
    return DOSE * ka / (vol * (ka - ke)) * (torch.exp(-ke * t) - torch.exp(-ka * t))


def misfit(theta, t, conc):
    r = bateman(theta, t) - conc
    # heavy-tailed on purpose, starts can be far away
    return torch.log1p(r * r).sum()


def sow(gen, n):
    return {
        "log_ka": 1.5 * torch.randn(n, generator=gen) + 0.5,
        "log_ke": 1.5 * torch.randn(n, generator=gen) - 2.0,
        "log_v": 2.0 * torch.randn(n, generator=gen) + 3.0,
    }


def main():
    gen = torch.Generator().manual_seed(12)
    truth = {"log_ka": torch.tensor(0.4), "log_ke": torch.tensor(-2.5), "log_v": torch.tensor(3.4)}
    conc = bateman(truth, HOURS) + 0.1 * torch.randn(HOURS.shape, generator=gen)

    theta = sow(gen, N_STARTS)
    opt = torch.optim.Rprop(list(theta.values()), lr=0.02, step_sizes=(1e-6, 0.3))
    batched = vmap(grad_and_value(misfit), in_dims=({k: 0 for k in theta}, None, None))

    for step in range(1, 57):
        grads, values = batched(theta, HOURS, conc)
        for name, p in theta.items():
            p.grad = grads[name]
        opt.step()
        opt.zero_grad(set_to_none=True)
        best = values.argmin().item()
        print(f"{step:3d} sum {values.sum().item():14.6f} best {values[best].item():.6f} (start {best})")
        if step % 14 == 0 and step < 56:
            worst = values.argsort(descending=True)[: N_STARTS // 2]
            fresh = sow(gen, len(worst))
            for name, p in theta.items():
                p[worst] = fresh[name]
                # their step sizes start over as well
                opt.state[p]["step_size"][worst] = 0.02
                opt.state[p]["prev"][worst] = 0.0

    print("final", sum(p.abs().sum().item() for p in theta.values()))


if __name__ == "__main__":
    main()
