# Planck's constant and nine work functions from a student lab, everything in SI units (J, Hz, C).
# functional style: parameters are a dict, gradients come from torch.func
import torch
from torch.func import grad_and_value, vmap

torch.manual_seed(1905)
torch.set_default_dtype(torch.float64)

H_TRUE, E_CHARGE = 6.62607015e-34, 1.602176634e-19
METALS = ["Cs", "K", "Na", "Li", "Ca", "Mg", "Al", "Zn", "Cu"]
WORK_EV = torch.tensor([2.14, 2.30, 2.36, 2.90, 2.87, 3.66, 4.08, 4.31, 4.65])


def laboratory(per_metal=24):
    metal = torch.arange(len(METALS)).repeat_interleave(per_metal)
    threshold = WORK_EV[metal] * E_CHARGE / H_TRUE
    freq = threshold * (1.05 + 0.9 * torch.rand(metal.numel()))
    kinetic = H_TRUE * freq - WORK_EV[metal] * E_CHARGE
    return metal, freq, kinetic + 2e-24 * torch.randn(metal.numel())


def kinetic_energy(params, metal, freq):
    return torch.exp(params["log_h"]) * (freq - torch.exp(params["log_nu"])[metal])


def one(params, metal, freq, target):
    return (kinetic_energy(params, metal, freq) - target) ** 2


def loss_fn(params, metal, freq, target):
    per_shot = vmap(one, in_dims=(None, 0, 0, 0))(params, metal, freq, target)
    return per_shot.mean()                              # joule squared


def main(iterations=160):
    metal, freq, kin = laboratory()
    params = {
        "log_h": torch.tensor(6.0e-34).log().requires_grad_(),
        "log_nu": torch.full((len(METALS),), 7.5e14).log().requires_grad_(),
    }
    # squared gradients are about 1e-78, so eps has to be far below the default
    opt = torch.optim.Adam(params.values(), lr=0.05, betas=(0.9, 0.98), eps=1e-70)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=iterations, eta_min=1e-6)
    step_fn = grad_and_value(loss_fn)

    for i in range(iterations):
        grads, loss = step_fn({k: v.detach() for k, v in params.items()}, metal, freq, kin)
        for name, p in params.items():
            p.grad = grads[name]
        opt.step()
        sched.step()
        gnorm = torch.sqrt(sum((g ** 2).sum() for g in grads.values()))
        print("iter %03d  loss %.4e J^2  |grad| %.3e" % (i + 1, loss.item(), gnorm.item()), flush=True)

    with torch.no_grad():
        for m, ln in zip(METALS, params["log_nu"]):
            work = torch.exp(params["log_h"] + ln) / E_CHARGE
            print(f"{m:>2s}  {work.item():.4f} eV")
        print("h = %.6e J s" % params["log_h"].exp().item())
        print("%.10f" % sum(p.sum().item() for p in params.values()))


main()
