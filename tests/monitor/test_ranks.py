"""Two ranks, a fault on one of them: both discard the step, both keep the same weights, and nobody waits for ever."""

from __future__ import annotations

import json
import socket
import subprocess
import textwrap

import pytest
from tests.forked import Forked

from finitune.diagnosis.recorded import diagnose
from finitune.recording import Recording

STEPS = 11
FAULTS = {3: "loss", 5: "gradient", 7: "detached loss", 9: "late", 11: "rate"}
"""Step -> what goes wrong in it, on rank 1 alone."""

SCRIPT = """
import hashlib, json, math, os, sys
import torch, torch.distributed as dist
from torch import nn
import finitune

torch.set_num_threads(1)
faults, out, steps = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
generator = torch.Generator().manual_seed(rank)
step = 0

def faulty(kind):
    return rank == 1 and faults.get(str(step)) == kind

# Inside the backward, before the bucket is reduced.
model[0].register_full_backward_hook(lambda m, gi, go: None)
model[2].register_full_backward_hook(lambda m, gi, go: tuple(g * math.nan for g in gi) if faulty("gradient") else None)

def digest():
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()

def moments():
    tensors = [t for entry in optimizer.state.values() for t in entry.values()]
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()

history = []
try:
    with finitune.watch(ddp, optimizer, run_dir=out + "/run"):
        for step in range(1, steps + 1):
            x, y = torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)
            if faulty("loss"):
                y = torch.full_like(y, -100)
            loss = nn.functional.cross_entropy(ddp(x), y)
            if faulty("detached loss"):
                loss = loss + torch.tensor(math.nan)
            loss.backward()
            if step % 2 == 0:
                nn.utils.clip_grad_norm_(ddp.parameters(), 0.1)
            if faulty("late"):  # after the reduction, on this rank alone
                model[0].weight.grad[0, 0] = math.inf
            rate = optimizer.param_groups[0]["lr"]
            if faulty("rate"):
                optimizer.param_groups[0]["lr"] = math.nan
            optimizer.step()
            optimizer.param_groups[0]["lr"] = rate
            scheduler.step()
            optimizer.zero_grad()
            finite = all(bool(p.isfinite().all()) for p in model.parameters())
            history.append([digest(), moments(), finite, optimizer.param_groups[0]["lr"]])
finally:
    with open(f"{out}/history{rank}.json", "w") as file:
        json.dump(history, file)
dist.destroy_process_group()
"""


def two_ranks(tmp_path, faults, timeout=240, source=SCRIPT):
    """Both processes to their end: exit codes, what was printed, per rank and step [weights, moments, finite, lr]."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(source))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    words = [str(script), json.dumps(faults), str(tmp_path), str(STEPS)]
    ranks = [
        Forked(words, tmp_path / f"printed{rank}", {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in (0, 1)
    ]
    try:
        codes = [process.wait(timeout) for process in ranks]
    except subprocess.TimeoutExpired:
        pytest.fail("the ranks wait for each other")
    finally:
        for process in ranks:
            process.kill()
    histories = [json.loads((tmp_path / f"history{rank}.json").read_text()) for rank in (0, 1)]
    return codes, [process.stderr for process in ranks], histories


@pytest.mark.slow
def test_a_fault_on_one_rank_is_discarded_on_both(tmp_path):
    codes, said, (first, second) = two_ranks(tmp_path, FAULTS)
    assert codes == [0, 0], said
    assert first == second, "weights, moments and learning rate, on every step"
    assert [entry[2] for entry in first] == [True] * STEPS
    for bad, kind in FAULTS.items():
        assert first[bad - 1][:2] == first[bad - 2][:2], kind
        assert first[bad - 1][3] == first[bad - 2][3], "the schedule waits on both ranks"
    assert len({entry[0] for entry in first}) == STEPS - len(FAULTS), "every other step trains"
    recording = Recording.load(tmp_path / "run")
    assert [rank.rank for rank in recording.ranks] == [0, 1]
    expected = [float(step in FAULTS) for step in range(1, STEPS + 1)]
    assert all(rank.signals["skipped"].values.tolist() == expected for rank in recording.ranks)
    assert not recording.events("broken")

    # The origin is that of the rank where the fault is. The third comes from outside of what can be run again: the
    # statement is known; nothing is known of the last.
    origins = [event for event in recording.events("origin") if event["origin"] is not None]
    assert {(event["rank"], event["step"], event["repeats"]) for event in origins} == {
        (1, 3, True), (1, 5, True), (1, 7, None), (1, 11, None),
    }  # fmt: skip
    loss, gradient, constant, rate = [one for one in diagnose(tmp_path / "run").incidents if one.origin is not None]
    assert (loss.origin.op, loss.origin.phase) == ("aten.nll_loss_forward", "forward")
    assert "cross_entropy(ddp(x), y)" in loss.origin.line, "as the next step shows"
    assert (gradient.origin.op, gradient.origin.phase) == ("aten.mul", "backward")
    assert "loss = loss + torch.tensor(math.nan)" in constant.origin.line
    assert (rate.rank, rate.symptom, rate.origin.op) == (1, "nonfinite-update", "AdamW.step")


@pytest.mark.slow
def test_a_persistent_fault_on_one_rank_ends_both_with_code_3(tmp_path):
    codes, said, (first, second) = two_ranks(tmp_path, dict.fromkeys(range(3, STEPS + 1), "loss"))
    assert codes == [3, 3], said
    assert first == second
    assert len(first) == 4, "the third bad step does not return"
    assert (tmp_path / "run" / "last-good" / "model.safetensors").is_file()
    assert {event["rank"] for event in Recording.load(tmp_path / "run").events("stop")} == {0, 1}


FAILS = """
from finitune.monitor.samples import Samples
if rank == 1:
    def planted(*_):
        raise RuntimeError("planted in finitune")
    Samples.before = planted
history = []
"""


@pytest.mark.slow
def test_where_finitune_fails_on_one_rank_the_other_does_not_wait(tmp_path):
    codes, said, (first, second) = two_ranks(
        tmp_path, FAULTS, timeout=60, source=SCRIPT.replace("history = []\n", FAILS)
    )
    assert codes == [0, 0], said
    assert first == second
    assert len({entry[0] for entry in first}) == STEPS - len(FAULTS)
    recording = Recording.load(tmp_path / "run")
    assert {event["rank"] for event in recording.events("broken")} == {1}
    assert {event["step"] for event in recording.events("incident")} == set(FAULTS)


BEGINS = """
import json, sys
import torch, torch.distributed as dist
from torch import nn
import finitune

torch.set_num_threads(1)
out = sys.argv[2]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
"""
GATHERED = (
    BEGINS
    + """
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 3, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
generator = torch.Generator().manual_seed(rank)

class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]

def on_sphere(z):
    return z / z.norm(dim=1, keepdim=True)

def contrast(a, b):
    return nn.functional.cross_entropy(a @ Gather.apply(b).T, torch.arange(len(a)) + rank * len(a))

with finitune.watch(model, optimizer, run_dir=out + "/run"):
    for step in range(1, 8):
        x = torch.randn(6, 4, generator=generator)
        if rank == 1 and step == 4:
            x[2] = 0
        a, b = on_sphere(model(x)).chunk(2)
        loss = contrast(a, b) + contrast(b, a)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
with open(f"{out}/history{rank}.json", "w") as file:
    json.dump([all(bool(p.isfinite().all()) for p in model.parameters())], file)
dist.destroy_process_group()
"""
)


@pytest.mark.slow
def test_the_rank_that_made_what_all_gather_is_named(tmp_path):
    """The losses of both are NaN, and no rank can run its step again by itself; one knows the operator."""
    codes, said, histories = two_ranks(tmp_path, {}, source=GATHERED)
    assert (codes, histories) == ([0, 0], [[True], [True]]), said
    (incident,) = diagnose(tmp_path / "run").incidents
    assert (incident.step, incident.rank, incident.origin.op) == (4, 1, "aten.div")
    assert "in on_sphere: return z / z.norm(dim=1, keepdim=True)" in incident.origin.line


ON_ITS_OWN = (
    BEGINS
    + """
reduces = json.loads(sys.argv[1])["reduces"]
model = nn.Linear(4, 1, bias=False)

class UnitSteps(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if reduces:
                dist.all_reduce(torch.zeros(1))
            p -= 0.1 * p.grad / p.grad.norm()

optimizer = UnitSteps(model.parameters(), {})
generator = torch.Generator().manual_seed(rank)
try:
    with finitune.watch(model, optimizer, run_dir=out + "/run"):
        for step in range(1, 8):
            x = torch.randn(6, 4, generator=generator) * (rank == 0 or step != 4)
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
finally:
    with open(f"{out}/history{rank}.json", "w") as file:
        json.dump([all(bool(p.isfinite().all()) for p in model.parameters())], file)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("reduces", [False, True])
def test_a_rank_of_no_known_group_keeps_its_weights_and_ends(tmp_path, reduces):
    """Its own optimizer makes NaN of a gradient of zero. One that talks to the other rank is not stepped once more."""
    codes, said, histories = two_ranks(tmp_path, {"reduces": reduces}, timeout=60, source=ON_ITS_OWN)
    assert codes[1] == 3, said
    assert codes[0] == 0 or reduces
    assert histories == [[True], [True]]
    assert (tmp_path / "run" / "last-good" / "model.safetensors").is_file()
    incident, *_ = diagnose(tmp_path / "run").incidents
    assert (incident.step, incident.rank, incident.symptom) == (4, 1, "nonfinite-update")
    if not reduces:
        assert (incident.origin.op, incident.origin.phase) == ("aten.div", "optimizer")
        assert incident.origin.line.endswith("in step: p -= 0.1 * p.grad / p.grad.norm()")
        assert "steps, all finite on rank 0; recorded in" in said[0]


ADVERSARIES = (
    BEGINS
    + """
generator, critic = map(nn.parallel.DistributedDataParallel, (nn.Linear(3, 4), nn.Linear(4, 1)))
optimizers = [torch.optim.RMSprop(model.parameters(), lr=1e-2) for model in (critic, generator)]
torch.manual_seed(rank)
with finitune.watch(critic, optimizers[0], run_dir=out + "/run"):
    finitune.watch(generator, optimizers[1])
    for step in range(1, 8):
        seen = critic(torch.cat([torch.randn(6, 4), generator(torch.randn(6, 3)).detach()]))
        optimizers[0].zero_grad()
        (seen[6:].mean() - seen[:6].mean()).backward()
        optimizers[0].step()
        critic.requires_grad_(False)
        optimizers[1].zero_grad()
        critic.module(generator(torch.randn(6, 3))).mean().neg().backward()
        optimizers[1].step()
        critic.requires_grad_(True)
with open(f"{out}/history{rank}.json", "w") as file:
    json.dump([float(p.detach().sum()) for p in critic.parameters()], file)
dist.destroy_process_group()
"""
)


@pytest.mark.slow
def test_a_critic_that_is_frozen_while_the_generator_is_trained(tmp_path):
    codes, said, (first, second) = two_ranks(tmp_path, {}, source=ADVERSARIES)
    assert codes == [0, 0], said
    assert first == second
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    assert not recording.events("incident")
    assert max(recording.signals["reduction_error"].values) < 1e-5, "its gradients are compared all the same"


LEAVES_OUT = (
    BEGINS
    + """

class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x):
        return self.one(x), self.other(x)

model = nn.parallel.DistributedDataParallel(Heads())
optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)
said = ""
try:
    with finitune.watch(model, optimizer, run_dir=out + "/run"):
        for step in range(1, 6):
            one, other = model(torch.randn(6, 4))
            loss = one.square().mean() + (other.square().mean() if rank == 0 or step != 3 else 0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
except RuntimeError as error:
    said = str(error)
with open(f"{out}/history{rank}.json", "w") as file:
    json.dump([step, said], file)
"""
)


@pytest.mark.slow
def test_a_rank_that_leaves_out_a_head_fails_as_without_finitune(tmp_path):
    """It does not wait for those that wait in their backward for its gradients: its next forward says what is wrong."""
    _, printed, (_, second) = two_ranks(tmp_path, {}, timeout=60, source=LEAVES_OUT)
    step, said = second
    assert step == 4, printed
    assert said.startswith("Expected to have finished reduction in the prior iteration")


SQUEEZES = (
    BEGINS
    + """
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))

def squeeze(group, bucket):
    wire = bucket.buffer().half()
    return dist.all_reduce(wire, group=group, async_op=True).get_future().then(
        lambda done: bucket.buffer().copy_(done.value()[0]) / dist.get_world_size(group)
    )

model.register_comm_hook(dist.group.WORLD, squeeze)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
with finitune.watch(model, optimizer, run_dir=out + "/run"):
    for step in range(1, 6):
        optimizer.zero_grad()
        (model(torch.randn(6, 4)) * (1e6 if step == 3 and rank == 1 else 1)).square().sum().backward()
        optimizer.step()
with open(f"{out}/history{rank}.json", "w") as file:
    json.dump([all(bool(p.isfinite().all()) for p in model.parameters())], file)
"""
)


@pytest.mark.slow
def test_a_hook_of_the_users_own_on_the_communication(tmp_path):
    """Its collectives run within the backward, in which the reducer is locked; float16 cannot hold all."""
    codes, said, histories = two_ranks(tmp_path, {}, timeout=60, source=SQUEEZES)
    assert (codes, histories) == ([0, 0], [[True], [True]]), said
    (incident,) = diagnose(tmp_path / "run").incidents
    assert (incident.step, incident.symptom, incident.action) == (3, "nonfinite-gradient", "skipped-step")
    assert not any(cause.cause == "hardware-fault-sdc" and cause.strength != "guess" for cause in incident.causes)
