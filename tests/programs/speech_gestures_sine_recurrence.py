"""Arm gestures from the loudness and pitch of a speaker, with a bounded sine recurrence."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn

JOINTS = 4


class SineCell(nn.Module):
    def __init__(self, n_in, n_state, gain):
        super().__init__()
        self.listen = nn.Linear(n_in, n_state)
        self.recur = nn.Parameter(nn.init.orthogonal_(torch.empty(n_state, n_state)) * gain)

    def forward(self, audio, state):
        return torch.sin(self.listen(audio) + state @ self.recur)


class Gesturer(nn.Module):
    def __init__(self, n_state=20, gain=2.6):
        super().__init__()
        self.cell = SineCell(2, n_state, gain)
        self.pose = nn.Linear(n_state, JOINTS)

    def forward(self, audio):
        state = audio.new_zeros(audio.shape[0], self.pose.in_features)
        poses = []
        for frame in audio.unbind(1):
            state = self.cell(frame, state)
            poses.append(self.pose(state))
        return torch.stack(poses, 1)


def talk(frames, speakers, gen):
    t = torch.arange(frames) / 12.0
    beat = torch.rand(speakers, 1, generator=gen) + 0.5
    loud = torch.sin(beat * t) + 0.1 * torch.randn(speakers, frames, generator=gen)
    pitch = torch.cos(0.7 * beat * t)
    audio = torch.stack([loud, pitch], -1)
    joints = torch.stack([0.5 * loud, 0.3 * pitch, 0.2 * loud * pitch, -0.4 * loud], -1)
    return audio, joints


def clip_lengths(steps):
    # interviews in short takes; one keynote was never cut
    lengths = [14 + (5 * k) % 11 for k in range(steps)]
    lengths[22] = 520
    return lengths


def train(opts):
    torch.manual_seed(opts.seed)
    gen = torch.Generator().manual_seed(opts.seed + 1)
    net = Gesturer()
    optim = torch.optim.AdamW(net.parameters(), lr=opts.lr, weight_decay=1e-3)
    for k, frames in enumerate(clip_lengths(opts.steps)):
        audio, joints = talk(frames, 3, gen)
        out = net(audio)
        loss = F.mse_loss(out, joints) + 0.1 * F.l1_loss(out.diff(dim=1), joints.diff(dim=1))
        optim.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optim.step()
        print(f"[{k + 1:>2}/{opts.steps}] frames={frames:<4} loss={loss.item():.5f}")
    return net


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=9)
    trained = train(parser.parse_args())
    print("weights, absolute:", sum(p.detach().abs().sum().item() for p in trained.parameters()))
