"""Several models that are trained in several threads at the same time: none looks at what another thread writes."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from finitune.monitor.process import Monitor, Stopped
from finitune.monitor.threads import EachThread
from finitune.recording import Recording

MEMBERS, ROUNDS, BAD = 4, 12, 5


class Member:
    def __init__(self, number):
        self.number = number
        self.generator = torch.Generator().manual_seed(number)
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        for p in self.net.parameters():
            torch.nn.init.normal_(p, std=0.3, generator=self.generator)
        self.renew()

    def renew(self):
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9)

    def step(self, *, bad=False):
        x = torch.randn(16, 3, generator=self.generator)
        loss = (self.net(x) - x.sum(1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        (loss / 0 if bad else loss).backward()
        self.optimizer.step()
        return loss.item()


def train(directory=None, bad_member=None):
    members = [Member(number) for number in range(MEMBERS)]
    meet = threading.Barrier(MEMBERS)

    def step(member, number):
        meet.wait()
        return member.step(bad=member.number == bad_member and number == BAD)

    monitor = Monitor(run_dir=directory, everything=True) if directory else None
    losses = []
    try:
        for member in members if monitor else ():
            monitor.add(member.optimizer)
        with ThreadPoolExecutor(MEMBERS) as pool:
            for number in range(1, ROUNDS + 1):
                losses.append(list(pool.map(step, members, [number] * MEMBERS)))
                if number % 4 == 0:
                    members[number // 4].renew()
    finally:
        if monitor is not None:
            monitor.close()
    return losses, [p.detach().clone() for member in members for p in member.net.parameters()]


def test_healthy_members_are_as_without_and_step_together(tmp_path):
    alone, weights = train()
    watched, after = train(tmp_path / "run")
    assert watched == alone
    assert all(torch.equal(one, other) for one, other in zip(weights, after, strict=True))
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    assert not recording.events("incident")
    assert len(recording.signals["skipped"]) == ROUNDS


def test_a_bad_step_is_that_of_its_member(tmp_path):
    try:
        _, weights = train(tmp_path / "run", bad_member=2)
    except Stopped:
        pytest.fail("one bad step is no persistent fault")
    recording = Recording.load(tmp_path / "run")
    assert [event["step"] for event in recording.events("incident")] == [BAD]
    assert all(weight.isfinite().all() for weight in weights)


def test_one_for_all_until_they_are_separated():
    each = EachThread(list)
    first = each.get()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(each.get).result() is first
        each.separate(threading.get_ident())
        assert each.get() is first
        assert pool.submit(each.get).result() is not first
