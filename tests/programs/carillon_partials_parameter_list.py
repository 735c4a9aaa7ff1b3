# carillon_partials: 240 bells, each with its own little parameter vector (amplitude, detune, decay, phase) in one ParameterList.
# Evaluated with vmap over the stacked list; the stiffness prior uses a directional derivative (jvp) through the synth.
# Optimizer is our look-around SGD (closure called twice per step, as in SAM), plus an averaged copy (SWA) at the end.
import torch
from torch import nn
from torch.func import jvp, vmap
from torch.optim.swa_utils import SWALR, AveragedModel

N_BELLS, T = 240, 40
SETTINGS = dict(lr=0.8, rho=0.02, epochs=24, swa_start=14)


class LookAroundSGD(torch.optim.SGD):
    """Climb rho along the gradient, take the gradient there, go back, descend with it."""

    def __init__(self, params, rho, **kw):
        super().__init__(params, **kw)
        self.rho = rho

    @torch.no_grad()
    def step(self, closure):
        first = torch.enable_grad()(closure)()
        ps = [p for gr in self.param_groups for p in gr["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in ps]).norm()
        moves = [p.grad * (self.rho / (norm + 1e-12)) for p in ps]
        torch._foreach_add_(ps, moves)
        torch.enable_grad()(closure)()
        torch._foreach_sub_(ps, moves)
        super().step()
        return first


def strike(theta, t):
    amp, detune, decay, phase = theta.unbind()
    return amp * torch.exp(-torch.nn.functional.softplus(decay) * t) * torch.cos(6.0 * (1 + detune) * t + phase)


class Carillon(nn.Module):
    def __init__(self):
        super().__init__()
        self.bells = nn.ParameterList([nn.Parameter(torch.randn(4) * 0.2 + torch.tensor([1.0, 0, 0, 0])) for _ in range(N_BELLS)])
        self.master = nn.Parameter(torch.tensor(1.0))

    def forward(self, t):
        theta = torch.stack(list(self.bells))
        return self.master * vmap(strike, in_dims=(0, None))(theta, t)

    def roughness(self, t):
        def slope(th):
            return jvp(lambda u: strike(th, u), (t,), (torch.ones_like(t),))[1]
        return vmap(slope)(torch.stack(list(self.bells))).square().mean()


def main():
    torch.manual_seed(1652)
    t = torch.linspace(0, 2, T)
    with torch.no_grad():
        truth = Carillon()
        wave = truth(t)
    model = Carillon()
    opt = LookAroundSGD(model.parameters(), rho=SETTINGS["rho"], lr=SETTINGS["lr"], momentum=0.9, nesterov=True)
    swa, swa_lr = AveragedModel(model), SWALR(opt, swa_lr=0.4, anneal_epochs=4)
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        opt.zero_grad()
        fit = (model(t) - wave).square().mean()
        loss = fit + 1e-3 * model.roughness(t)
        loss.backward()
        return loss.detach()

    for epoch in range(1, SETTINGS["epochs"] + 1):
        loss = opt.step(closure)
        if epoch > SETTINGS["swa_start"]:
            swa.update_parameters(model)
            swa_lr.step()
        print(f"epoch {epoch:2d} loss {loss.item():.7f} lr {opt.param_groups[0]['lr']:.3f} calls {calls}")
    with torch.inference_mode():
        print(f"averaged model mse {(swa(t) - wave).square().mean().item():.7f}  n {int(swa.n_averaged)}")
    print(f"checksum {sum(p.detach().sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    main()
