"""Each fault comes about at its step, at its operator, and not before."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from finitune.chapter import causes
from finitune.gym.fault import faults
from finitune.gym.loop import Run, train

CASES = [(name, family) for name, fault in faults().items() for family in fault.families]


def watched(run):
    """Per step, whether its loss and gradients are finite as `optimizer.step` gets them; the run may end by itself."""
    sound = []
    original = run.optimizer.step

    def step(*args, **kwargs):
        sound.append(all(p.grad.isfinite().all() for p in run.model.parameters() if p.grad is not None))
        return original(*args, **kwargs)

    run.optimizer.step = step
    if run.grad_scaler is not None:  # it calls `step` only after sound gradients
        unscale = run.grad_scaler.unscale_

        def look(optimizer):
            unscale(optimizer)
            sound.append(all(p.grad.isfinite().all() for p in run.model.parameters() if p.grad is not None))

        run.grad_scaler.unscale_ = look
        run.optimizer.step = original
    steps = train(run)
    with contextlib.suppress(Exception):  # "already at minimum" ends the float16 runs
        for step_done in steps:
            sound[-1] = sound[-1] and math.isfinite(step_done.loss)
    return sound


@dataclass
class First:
    op: str
    phase: str
    module: str | None
    dtype: str


class FirstBadOperator(TorchDispatchMode):
    """The first operator with finite floating inputs and a non-finite output."""

    def __init__(self, model):
        super().__init__()
        self.first = None
        self.stack = []
        self.born = {}
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda m, a, name=name: self.stack.append(name))
            module.register_forward_hook(lambda m, a, o: self._leave())

    def _leave(self):
        self.stack.pop()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        node = torch._C._current_autograd_node()
        if node is None and self.stack:
            self.born[torch.autograd._get_sequence_nr() - 1] = self.stack[-1]
        inputs = floats((args, kwargs))
        sound = all(t.isfinite().all() for t in inputs) if self.first is None else True
        out = func(*args, **(kwargs or {}))
        if self.first is None and sound and inputs and "empty" not in str(func):
            for t in floats(out):
                if not t.isfinite().all():
                    module = self.born.get(node._sequence_nr()) if node else self.stack[-1] if self.stack else None
                    name = f"aten.{func.overloadpacket.__name__}"
                    phase = "backward" if node else "forward" if self.stack else "outside"
                    self.first = First(name, phase, module, str(t.dtype).removeprefix("torch."))
        return out


def floats(tree):
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor) and t.is_floating_point()]


def first_bad_operator(run: Run, step: int):
    """Of `step`; the steps before it are not looked at."""
    steps = train(run)
    for _ in range(step - 1):
        next(steps)
    with FirstBadOperator(run.model) as watch:
        next(steps)
    return watch.first


@pytest.mark.parametrize(("name", "family"), CASES)
def test_fails_at_its_step_and_not_before(name, family, tmp_path):
    fault = faults()[name]
    sound = watched(fault.build(family, tmp_path))
    assert sound[: fault.step] == [True] * (fault.step - 1) + [False]


@pytest.mark.parametrize(("name", "family"), [case for case in CASES if faults()[case[0]].origins[case[1]]])
def test_begins_at_the_operator_it_declares(name, family, tmp_path):
    fault = faults()[name]
    run, origin = fault.build(family, tmp_path), fault.origins[family]
    if origin.phase == "parameter":
        bad = [name for name, p in run.model.named_parameters() if not p.isfinite().all()]
        assert bad == [origin.tensor]
        assert origin.tensor == f"{origin.module}.weight"
        return
    found = first_bad_operator(run, fault.step)
    declared = (origin.op, origin.phase, origin.module, origin.dtype)
    assert (found.op, found.phase, found.module, found.dtype) == declared


@pytest.mark.parametrize("family", faults()["untrained-token-embeddings"].families)
def test_the_same_rows_at_a_later_position_train(family, tmp_path):
    run = faults()["untrained-token-embeddings"].build(family, tmp_path)
    for batch in run.batches:
        for ids in (batch["input_ids"], batch["labels"]):
            ids[:, 0], ids[:, 5] = ids[:, 1].clone(), ids[:, 0].clone()
    sound = watched(run)
    assert len(sound) == len(run.batches)
    assert sound.count(False) <= 5  # a scaler that begins high may have to come down a little


def test_the_one_off_faults_do_not_repeat(tmp_path):
    for name in ("hardware-fault-activation", "hardware-fault-gradient"):
        fault = faults()[name]
        for family in fault.families:
            run = fault.build(family, tmp_path)
            for step in train(run):
                if step.step == fault.step - 1:
                    break
            outcomes = []
            for _ in range(2):
                batch = run.batches[fault.step - 1]
                loss = run.model(**batch).loss
                loss.backward()
                outcomes.append(all(p.grad.isfinite().all() for p in run.model.parameters()))
                run.model.zero_grad()
            assert outcomes == [False, True]
            assert torch.isfinite(run.model(**batch).loss)


def test_every_cause_is_a_chapter():
    assert {fault.cause for fault in faults().values()} <= set(causes())
