"""Every fault of the gym under guard: the exact step, the exact operator, the right cause, in at most two extra passes.

The healthy controls, on which nothing may be said, are in test_healthy_is_untouched.py.
"""

from __future__ import annotations

import contextlib
import io

import pytest
import torch

from finitune.diagnosis.recorded import diagnose
from finitune.gym.fault import faults
from finitune.gym.loop import train
from finitune.monitor.precision.float16_on_cpu import float16_on_cpu
from finitune.monitor.process import Stopped
from finitune.monitor.watch import watch
from finitune.recording import Recording

CASES = [(name, family) for name, fault in faults().items() for family in fault.families]
MAX_PASSES = 2


@pytest.fixture(scope="module", params=CASES, ids="/".join)
def guarded(request, tmp_path_factory):
    """One guarded run of a fault to its end: the fault, the family, the run, its recording and what was printed."""
    name, family = request.param
    directory = tmp_path_factory.mktemp(name)
    fault, said = faults()[name], io.StringIO()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with float16_on_cpu(), contextlib.redirect_stderr(said):
        run = fault.build(family, directory / "model")
        with contextlib.suppress(Stopped), watch(run.model, run.optimizer, run_dir=directory / "run"):
            for _ in train(run):
                pass
    torch.set_num_threads(threads)
    return fault, family, run, Recording.load(directory / "run"), said.getvalue()


def incident_of(fault, recording):
    """The incident at the fault's step; one before it may only be the divergence that a learning rate brings."""
    incidents = diagnose(recording.directory).incidents
    earlier = [incident for incident in incidents if incident.step < fault.step]
    if fault.cause == "lr-too-high":
        assert all(incident.symptom == "divergence" for incident in earlier)
    else:
        assert not earlier
    return next(incident for incident in incidents if incident.symptom != "divergence")


def test_every_fault(guarded):
    fault, family, run, recording, said = guarded
    assert not recording.events("broken"), said
    incident = incident_of(fault, recording)
    assert incident.step == fault.step

    (passes,) = [e["passes"] for e in recording.events("origin") if e["step"] == fault.step]
    assert passes <= MAX_PASSES

    declared = fault.origins[family]
    if declared is None:
        assert incident.origin is None
        assert incident.reproducible is False
    else:
        found = incident.origin
        assert incident.reproducible is True
        assert found is not None
        for field in ("module", "op", "phase", "dtype"):
            assert getattr(found, field) == getattr(declared, field), field
        if declared.tensor:
            assert found.tensor == declared.tensor

    assert incident.causes
    assert incident.causes[0].cause == fault.cause, [(c.cause, c.bits) for c in incident.causes]
    assert all(
        one.step >= incident.step or one.causes[0].cause == fault.cause
        for one in diagnose(recording.directory).incidents
    )

    # What was done about it: nothing non-finite got into the weights that was not there before.
    if fault.cause != "corrupt-checkpoint":
        assert all(p.isfinite().all() for p in run.model.parameters())
    assert recording.signals["skipped"].until(fault.step).last == 1
    assert f"step {fault.step}: " in said
    assert fault.cause in said
