# Tune a PID for a second-order plant. The plant is a black box (think of a
# simulator in C), so the slope of the cost is measured with central differences.
import torch

DT, HORIZON = 0.02, 250
REL = 1e-2


class Plant:
    """mass with damping, a little dead time and a saturating actuator"""

    def __init__(self, mass=1.0, damping=1.8, delay=2):
        self.mass, self.damping, self.delay = mass, damping, delay

    def run(self, gains, setpoint):
        kp, ki, kd = gains.unbind(-1)
        x = torch.zeros_like(kp)
        v = torch.zeros_like(kp)
        integral = torch.zeros_like(kp)
        last = setpoint - x
        queue = [torch.zeros_like(kp)] * self.delay
        cost = torch.zeros_like(kp)
        for k in range(HORIZON):
            e = setpoint - x
            integral = integral + e * DT
            u = kp * e + ki * integral + kd * (e - last) / DT
            last = e
            queue.append(torch.tanh(u / 6) * 6)
            force = queue.pop(0)
            v = v + DT * (force - self.damping * v) / self.mass
            x = x + DT * v
            cost = cost + DT * (k * DT * e.abs() + 0.002 * u * u)
        return cost


class BlackBoxTuner:
    def __init__(self, plant, gains, lr):
        self.plant = plant
        self.gains = torch.nn.Parameter(torch.tensor(gains))
        self.opt = torch.optim.SGD([self.gains], lr=lr, momentum=0.6)

    @torch.no_grad()
    def slope(self, setpoint):
        g = self.gains.detach()
        h = REL * g.abs()
        up = g + torch.diag(h)
        down = g - torch.diag(h)
        return (self.plant.run(up, setpoint) - self.plant.run(down, setpoint)) / (2 * h)

    def step(self, setpoint):
        with torch.no_grad():
            cost = self.plant.run(self.gains.detach()[None], setpoint).item()
        self.gains.grad = self.slope(setpoint)
        self.opt.step()
        with torch.no_grad():
            self.gains.clamp_(min=0.0)       # negative gains are not allowed on the rig
        return cost


tuner = BlackBoxTuner(Plant(), gains=[2.0, 0.6, 0.9], lr=0.02)
for it in range(1, 26):
    cost = tuner.step(setpoint=1.0)
    kp, ki, kd = tuner.gains.tolist()
    print(f"{it:2d} ITAE {cost:.5f}   kp {kp:.3f} ki {ki:.3f} kd {kd:.3f}")
print("sum sq", tuner.gains.detach().square().sum().item())
