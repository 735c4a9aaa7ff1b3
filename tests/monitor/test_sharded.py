"""FSDP over two ranks: each holds a half of every tensor, and a fault on one of them is discarded on both."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file
from tests.monitor.test_ranks import BEGINS, STEPS, two_ranks

from finitune.diagnosis.recorded import diagnose
from finitune.recording import Recording

pytestmark = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="FSDP2 of this torch does not run on a CPU"
)
SCRIPT = """
import hashlib, json, math, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
import finitune

torch.set_num_threads(1)
faults, out, steps = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
guarded = faults.pop("unguarded", None) is None
blind = faults.pop("blind", None) is not None
dist.init_process_group("gloo")
rank = dist.get_rank()
if blind and rank == 1:
    from finitune.monitor.origin.operator_watch import OperatorWatch

    def look(*_args, **_more):
        raise RuntimeError("an operator of a new kind")

    OperatorWatch._look = look
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
fully_shard(model[0])
fully_shard(model[2])
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
generator = torch.Generator().manual_seed(rank)
step = 0

def faulty(kind):
    return rank == 1 and faults.get(str(step)) == kind

model[2].register_full_backward_hook(lambda m, gi, go: tuple(g * math.nan for g in gi) if faulty("gradient") else None)

def digest(tensors):
    shards = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in shards)).hexdigest()

history = []
monitor = finitune.watch(model, optimizer, run_dir=out + "/run") if guarded else None
try:
    for step in range(1, steps + 1):
        x, y = torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)
        if faulty("loss"):
            y = torch.full_like(y, -100)
        loss = nn.functional.cross_entropy(model(x), y)
        if faulty("detached loss"):
            loss = loss + torch.tensor(math.nan)
        loss.backward()
        if step % 2 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if faulty("late"):
            model[0].weight.grad.to_local()[0, 0] = math.inf
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()]).full_tensor().item()
        optimizer.step()
        optimizer.zero_grad()
        moments = [t for entry in optimizer.state.values() for t in entry.values()]
        history.append([digest(model.parameters()), digest(moments), loss.item(), norm])
finally:
    with open(f"{out}/history{rank}.json", "w") as file:
        json.dump(history, file)
if monitor:
    monitor.close()
sys.stdout.flush()
dist.destroy_process_group()
"""
FAULTS = {3: "loss", 5: "gradient", 7: "detached loss", 9: "late"}


@pytest.mark.slow
def test_a_fault_on_one_rank_is_discarded_on_both(tmp_path):
    codes, said, histories = two_ranks(tmp_path, FAULTS, source=SCRIPT)
    assert codes == [0, 0], said
    for history in histories:
        for bad, kind in FAULTS.items():
            assert history[bad - 1][:2] == history[bad - 2][:2], kind
        assert len({entry[0] for entry in history}) == STEPS - len(FAULTS), "every other step trains"
    recording = Recording.load(tmp_path / "run")
    expected = [float(step in FAULTS) for step in range(1, STEPS + 1)]
    assert all(rank.signals["skipped"].values.tolist() == expected for rank in recording.ranks)
    assert not recording.events("broken")
    norms = recording.signals["grad_norm"]
    assert math.isnan(norms.at(5)), "not the norm of the shards that are finite"
    # Found by the rank whose operator made it, although the shard that shows it may lie on the other.
    origins = [event for event in recording.events("origin") if event["origin"] is not None]
    assert {(event["rank"], event["step"]) for event in origins} == {(1, 3), (1, 5), (1, 7)}
    loss, gradient, constant = [one for one in diagnose(tmp_path / "run").incidents if one.origin is not None]
    assert (loss.origin.op, loss.origin.phase) == ("aten.nll_loss_forward", "forward")
    assert (gradient.origin.op, gradient.origin.phase) == ("aten.mul", "backward")
    assert "loss = loss + torch.tensor(math.nan)" in constant.origin.line
    assert "not tried        experiments: the model is sharded over ranks" in said[1]
    late = [event["why_not"] for event in recording.events("origin") if event["step"] == 9]
    assert late
    assert all("the loop's own code changed the gradients" in why_not for why_not in late), "no fault of the hardware"


@pytest.mark.slow
def test_a_healthy_run_is_bit_identical_and_its_norm_is_that_of_all_shards(tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "guarded").mkdir()
    _, _, plain = two_ranks(tmp_path / "plain", {"unguarded": "yes"}, source=SCRIPT)
    codes, said, guarded = two_ranks(tmp_path / "guarded", {}, source=SCRIPT)
    assert codes == [0, 0], said
    assert plain == guarded
    recording = Recording.load(tmp_path / "guarded" / "run")
    norms = recording.signals["grad_norm"].values.tolist()
    assert norms[::2] == pytest.approx([entry[3] for entry in guarded[0]][::2], rel=1e-5), "the steps without clipping"
    assert norms == recording.ranks[1].signals["grad_norm"].values.tolist()
    assert not recording.events("broken", "incident")


@pytest.mark.slow
def test_a_persistent_fault_ends_both_and_the_last_good_weights_are_whole(tmp_path):
    codes, said, histories = two_ranks(tmp_path, dict.fromkeys(range(3, STEPS + 1), "loss"), source=SCRIPT)
    assert codes == [3, 3], said
    assert [len(history) for history in histories] == [4, 4]
    saved = load_file(tmp_path / "run" / "last-good" / "model.safetensors")
    assert {name: tuple(t.shape) for name, t in saved.items()} == {
        "0.weight": (16, 6), "0.bias": (16,), "2.weight": (3, 16), "2.bias": (3,)
    }  # fmt: skip
    moments = load_file(tmp_path / "run" / "last-good" / "optimizer.safetensors")
    assert tuple(moments["0.weight.exp_avg"].shape) == (16, 6)


@pytest.mark.slow
def test_an_inspection_that_raises_on_one_rank_leaves_no_other_waiting(tmp_path):
    codes, said, histories = two_ranks(tmp_path, {3: "loss", "blind": "yes"}, source=SCRIPT)
    assert codes == [0, 0], said
    assert all(history[2][:2] == history[1][:2] for history in histories), "discarded on both"
    (origin,) = [e for e in Recording.load(tmp_path / "run").events("origin") if e["rank"] == 1]
    assert origin["repeats"]
    assert origin["why_not"] == "the step could not be watched: RuntimeError: an operator of a new kind"


FIRST_FSDP = (
    BEGINS
    + """
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

class Squared(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x * x)

half = MixedPrecision(param_dtype=torch.float16)
model = FullyShardedDataParallel(
    Squared(), device_id=torch.device("cpu"), mixed_precision=half, use_orig_params=True,
    auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(rank)
with finitune.watch(model, optimizer, run_dir=out + "/run"):
    for step in range(1, 7):
        x, y = torch.randn(8, 6), torch.randint(3, (8,))
        if (step, rank) == (4, 1):
            x[2] *= 1e3  # its square is beyond float16
        nn.functional.cross_entropy(model(x).float(), y).backward()
        optimizer.step()
        optimizer.zero_grad()
with open(f"{out}/history{rank}.json", "w") as file:
    json.dump([], file)
dist.destroy_process_group()
"""
)


@pytest.mark.slow
def test_where_no_rank_can_run_its_step_again_that_of_the_bad_loss_reports_it(tmp_path):
    """The first FSDP. Its reduction spreads the gradients of one rank to the shards of both."""
    codes, said, _ = two_ranks(tmp_path, {}, source=FIRST_FSDP)
    assert codes == [0, 0], said
    (incident,) = Recording.load(tmp_path / "run").events("incident")
    assert (incident["step"], incident["rank"]) == (4, 1)
