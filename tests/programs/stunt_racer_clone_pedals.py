"""Clone the drivers of our stunt racer: telemetry in, discretised wheel and pedals out."""
import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

WHEEL_BINS = 21
PEDALS = 4             # coast, throttle, brake, both
STACK = 4              # telemetry frames per decision
SENSORS = 11           # 9 track rays, speed, yaw rate


def drive(rng, seconds, device):
    """One replay at 10 Hz. Analog sticks have a dead rim; keys are all the way or nothing."""
    n = seconds * 10
    curve = np.cumsum(rng.normal(0, 0.25, n + STACK))
    curve = np.sin(curve * 0.3)
    rays = np.stack([np.tanh(1.5 - np.abs(curve - a)) for a in np.linspace(-1, 1, 9)], 1)
    speed = 1.0 - 0.6 * np.abs(curve)
    yaw = np.gradient(curve)
    telemetry = np.concatenate([rays, speed[:, None], yaw[:, None]], 1).astype(np.float32)
    wheel = 0.9 * curve + 0.05 * rng.normal(size=curve.shape)
    if device == "keyboard":
        wheel = np.where(np.abs(wheel) < 0.35, 0.0, np.sign(wheel))
    else:
        wheel = np.clip(wheel, -0.97, 0.97)
    pedal = np.where(np.abs(curve) > 0.8, 2, np.where(np.abs(curve) > 0.6, 0, 1))
    return telemetry, wheel.astype(np.float32), pedal


class ReplayFolder(Dataset):
    def __init__(self, replays):
        self.items = []
        for telemetry, wheel, pedal in replays:
            for t in range(STACK, len(telemetry)):
                self.items.append((telemetry[t - STACK:t], wheel[t], pedal[t]))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        telemetry, wheel, pedal = self.items[i]
        wheel_bin = int((wheel + 1.0) / 2.0 * WHEEL_BINS)
        return torch.from_numpy(telemetry), wheel_bin, int(pedal)


class Driver(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.frame = nn.Sequential(nn.Linear(SENSORS, dim), nn.SiLU())
        self.time = nn.Conv1d(dim, dim, STACK)
        self.trunk = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.SiLU(), nn.Dropout(0.1))
        self.wheel = nn.Linear(dim, WHEEL_BINS)
        self.pedals = nn.Linear(dim, PEDALS)

    def forward(self, telemetry):
        h = self.frame(telemetry).transpose(1, 2)
        h = self.trunk(self.time(h).squeeze(-1))
        return self.wheel(h), self.pedals(h)


def main():
    set_seed(2024)
    rng = np.random.default_rng(2024)
    # playtest night one was gamepads only; the keyboard crowd came later
    replays = [drive(rng, 30, "gamepad") for _ in range(6)] + [drive(rng, 30, "keyboard") for _ in range(6)]
    loader = DataLoader(ReplayFolder(replays), batch_size=64, shuffle=False)
    model = Driver()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    acc = Accelerator(cpu=True)
    model, optimizer, loader = acc.prepare(model, optimizer, loader)
    wheel_loss = nn.CrossEntropyLoss(label_smoothing=0.05)
    pedal_loss = nn.CrossEntropyLoss()

    for step, (telemetry, wheel_bin, pedal) in enumerate(loader, 1):
        wheel_logits, pedal_logits = model(telemetry)
        steer = wheel_loss(wheel_logits, wheel_bin)
        feet = pedal_loss(pedal_logits, pedal)
        loss = steer + 0.5 * feet
        acc.backward(loss)
        acc.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        acc.print(f"batch {step:3d} steer {steer.item():.5f} feet {feet.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
