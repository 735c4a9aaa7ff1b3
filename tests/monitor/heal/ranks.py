"""What every program of two ranks here writes down after each step, and what must be true of both ranks."""

from __future__ import annotations

from tests.monitor.test_ranks import two_ranks

BEGIN = """
import hashlib, json, sys
import torch, torch.distributed as dist
import finitune

torch.set_num_threads(1)
what, out = json.loads(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo")
rank = dist.get_rank()
history = []

def note(model, optimizer, loss, *more):
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    finite = all(bool(p.isfinite().all()) for p in model.parameters())
    history.append([digest, finite, optimizer.param_groups[0]["lr"], float(loss.detach()), *more])

def end():
    with open(f"{out}/history{rank}.json", "w") as file:
        json.dump(history, file)
"""


def trained_alike(tmp_path, what, source):
    """Of each step [digest of the weights, finite, rate, loss of the first rank]; what the ranks printed."""
    codes, said, (first, second) = two_ranks(tmp_path, what, source=BEGIN + source, timeout=240)
    assert codes == [0, 0], said
    alike = [[entry[:3] + entry[4:] for entry in rank] for rank in (first, second)]
    assert alike[0] == alike[1], "weights, rates and what else is noted, on every step"
    return first, said
