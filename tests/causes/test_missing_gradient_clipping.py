"""Programs that clip before they unscale, and programs that do not."""

import pytest

import finitune
from finitune.causes.missing_gradient_clipping import weigh
from finitune.series import Series

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
    assert one.remedy
    assert "scaler.unscale_(optimizer)" in str(one.remedy.text)


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


@pytest.mark.parametrize(("symptom", "bits"), [("nonfinite-loss", -3.0), ("nonfinite-gradient", 6.0)])
def test_what_a_bad_loss_leaves_is_no_spike_before_it(symptom, bits):
    norms = Series(range(1, 12), [1.0, 1.1] * 5 + [6e4])
    incident = {"step": 11, "optimizer": "SGD"}
    found = list(weigh(norms, incident=incident, symptoms={symptom}))
    assert found[-1].bits == bits
