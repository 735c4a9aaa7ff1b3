import numpy as np
import pytest

import finitune
from finitune.causes.missing_gradient_clipping import foresee, weigh
from finitune.facts import Optimizer, Precision
from finitune.series import Series


def series(*values: float) -> Series:
    return Series(steps=np.arange(len(values)), values=np.array(values, float))


@pytest.mark.parametrize(
    ("precision", "severity"),
    [(Precision(compute="float16"), "warning"), (Precision(compute="bfloat16"), "info"), (None, "info")],
)
def test_fires_by_how_much_room_a_spike_has(precision, severity):
    (finding,) = foresee(Optimizer(clip=0.0, source="a.json"), precision)
    assert finding.severity == severity
    assert finding.where.key == "max_grad_norm"


@pytest.mark.parametrize("clip", [1.0, 0.3, None])
def test_stays_quiet(clip):
    assert not list(foresee(Optimizer(clip=clip), Precision(compute="float16")))


def test_fires_after_a_run_only_with_a_spike():
    assert sum(e.bits for e in weigh(series(1, 1, 1, 1, 1, 1, 1, 90), Optimizer(clip=0.0))) > 0
    assert sum(e.bits for e in weigh(series(1, 1, 1, 1, 1, 1, 1, 1), Optimizer(clip=0.0))) < 0
    assert sum(e.bits for e in weigh(series(1, 1, 1, 1, 1, 1, 1, 90), Optimizer(clip=1.0))) < 0


def test_fires_in_a_run_that_was_watched_by_what_it_clipped():
    seen, norms = {"optimizer": "SGD"}, series(1, 1, 1, 1, 1, 1, 1, 900)
    assert sum(e.bits for e in weigh(norms, incident=seen)) > 6
    assert sum(e.bits for e in weigh(norms, incident=seen, clip_factor=series(1, 1, 1, 1, 1, 1, 1, 0.01))) < 0
    assert not list(weigh(norms, incident={}))


@pytest.mark.parametrize(
    ("lr", "lora", "severity"), [(2e-4, False, "warning"), (2e-4, True, "info"), (1e-5, False, "info")]
)
def test_fires_the_louder_the_higher_the_rate(lr, lora, severity):
    assert [f.severity for f in foresee(Optimizer(clip=0.0, lr=lr, lora=lora))] == [severity]


LOOP = """
import torch
from torch.nn.utils import clip_grad_norm_
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
scaler = torch.amp.GradScaler("cuda"{more})
for batch in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(**batch).loss
{body}
    optimizer.zero_grad()
"""
CLIP = "    clip_grad_norm_(model.parameters(), 1.0)\n"
VALUE = "torch.nn.utils.clip_grad_value_"
SCALE = "    scaler.scale(loss).backward()\n"
UNSCALE = "    scaler.unscale_(optimizer)\n"
STEP = "    scaler.step(optimizer)\n    scaler.update()\n"
BRANCHES = """\
    if scaler is None:
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
"""
OTHER_WAY = """\
    if use_amp:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    else:
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
"""


def of_loop(tmp_path, body, more=""):
    path = tmp_path / "train.py"
    path.write_text(LOOP.format(body=body, more=more))
    return [one for one in finitune.check(path, gpu="V100").findings if one.cause == "missing-gradient-clipping"]


@pytest.mark.parametrize(
    "body",
    [SCALE + CLIP + UNSCALE + STEP, SCALE + CLIP + STEP, (SCALE + CLIP + STEP).replace("clip_grad_norm_", VALUE)],
)
def test_fires_where_the_clip_comes_before_unscaling(tmp_path, body):
    (one,) = of_loop(tmp_path, body)
    assert one.severity == "warning"
    assert one.where.line == 13
    assert "before scaler.unscale_" in one.message
    assert "scaler.unscale_(optimizer)" in one.remedy.text


@pytest.mark.parametrize(
    ("body", "more"),
    [
        (SCALE + UNSCALE + CLIP + STEP, ""),
        (SCALE + CLIP + STEP, ", enabled=False"),
        (BRANCHES, ""),
        (OTHER_WAY, ""),
        ("    inverse = 1 / scaler.get_scale()\n" + SCALE + CLIP + STEP, ""),
    ],
)
def test_stays_quiet_where_gradients_are_unscaled_first_or_never_scaled(tmp_path, body, more):
    assert not of_loop(tmp_path, body, more)


def test_fires_where_a_trainer_clips_at_infinity_to_measure_the_norm():
    norms = series(*[1.0] * 20, 900.0)
    at_infinity, at_one = series(*[1.0] * 21), series(*[1.0] * 20, 1 / 900)
    found = [
        sum(e.bits for e in weigh(norms, incident={"optimizer": "SGD"}, clip_factor=one))
        for one in (at_infinity, at_one)
    ]
    assert found[0] > 0 > found[1]
