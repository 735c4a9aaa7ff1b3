"""A record that is normalised by its own spread, in a run that is watched."""

import pytest

from finitune.causes.bad_data_sample import weigh
from finitune.diagnosis.recorded import diagnose
from finitune.finding import Origin

torch = pytest.importorskip("torch")
from finitune.monitor.watch import watch  # noqa: E402


def incidents(tmp_path, *, constant):
    """A record is normalised by its own spread, which is 0 where it is constant."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 13):
            raw = torch.randn(4, 8)
            if constant and step == 9:
                raw[2] = 3.0  # a cached record of one value: its spread is 0
            features = (raw - raw.mean(1, keepdim=True)) / raw.std(1, keepdim=True)
            loss = (model(features) - raw.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return [(one.step, one.causes[0].cause) for one in diagnose(tmp_path / "run").incidents]


def test_fires_on_a_batch_that_holds_nan(tmp_path):
    assert incidents(tmp_path, constant=True) == [(9, "bad-data-sample")]


def test_stays_quiet_on_a_finite_one(tmp_path):
    assert incidents(tmp_path, constant=False) == []


def weights_of_advantages(tmp_path, *, temperature, rating):
    """Samples weighted by an exponential, which the loop computes of the ratings of each batch."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 13):
            features, ratings = torch.randn(8, 8), torch.linspace(-2.0, 2.0, 8)
            if step == 9:
                ratings[3] = rating
            weight = (ratings / (temperature if step == 9 else 1.0)).exp()
            loss = (weight * model(features).square().squeeze(1)).sum() / weight.sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return next((i.step, i.causes[0].cause if i.causes else None) for i in diagnose(tmp_path / "run").incidents)


def test_a_rating_far_from_the_others_is_a_bad_sample(tmp_path):
    assert weights_of_advantages(tmp_path, temperature=1.0, rating=5000.0) == (9, "bad-data-sample")


def test_an_exponential_whose_temperature_falls_is_none(tmp_path):
    assert weights_of_advantages(tmp_path, temperature=0.015, rating=1.0) == (9, None)


@pytest.mark.parametrize(
    ("peaks", "op", "rows", "found"),
    [
        ([0.3, 0.5, 0.0, 0.4], "aten.mean", None, True),
        ([0.3, 0.5, 0.0, 0.4], "aten.div", [2], True),
        ([0.3, 0.5, 0.0, 0.4], "aten.div", [1], False),  # another one is bad
        ([0.3, 0.5, 0.0, 0.4], "aten.exp", None, False),
        ([0.0, 0.0, 0.0, 0.4], "aten.mean", None, False),  # most are
        ([0.3, 0.5, 0.2, 0.4], "aten.mean", None, False),
    ],
)
def test_a_sample_that_is_zero_everywhere(peaks, op, rows, found):
    origin = Origin(module="meter", op=op, phase="forward", dtype="float32", rows=rows, values="1 nan")
    said = [one.bits > 0 for one in weigh({"symptom": "nonfinite-loss", "sample_peaks": peaks}, origin)]
    assert said == [True] * found


@pytest.mark.parametrize(("phase", "numbers", "found"), [
    ("forward", 1, True), ("backward", 1, False), ("backward", 3, True),
])  # fmt: skip
def test_a_sample_that_is_one_number_may_be_zero_where_the_forward_is_finite(phase, numbers, found):
    origin = Origin(module=None, op="aten.rsqrt", phase=phase, dtype="float32", rows=None, values="1 inf")
    incident = {"symptom": "nonfinite-gradient", "sample_peaks": [0.3, 0.0, 0.4], "sample_numbers": numbers}
    assert [one.bits > 0 for one in weigh(incident, origin)] == [True] * found


@pytest.mark.parametrize(("factor", "op", "found"), [
    (False, "aten.pow", True), (True, "aten.pow", False), (True, "aten.exp", True), (True, "input", True),
])  # fmt: skip
def test_a_factor_that_the_loop_computes_is_no_sample(factor, op, found):
    origin = Origin(
        module=None, op=op, phase="input", dtype="float32", rows=[3], values="1 inf", tensor="rarity", shape=[8]
    )
    (said,) = weigh({"symptom": "nonfinite-loss", "factor": factor}, origin)
    assert (said.bits > 0) == found


def test_a_sample_that_is_zero_makes_no_update_bad_of_finite_gradients():
    made = Origin(module=None, op="aten.div", phase="optimizer", dtype="float32", rows=[1])
    incident = {"symptom": "nonfinite-update", "sample_peaks": [0.3, 0.0, 0.4], "sample_numbers": 4}
    assert not list(weigh(incident, made))


@pytest.mark.parametrize(("samples", "found"), [([], True), ([5], True), ([2, 3], True), ([5, 5], True), ([8], False)])
def test_rows_are_samples_where_there_are_as_many(samples, found):
    weights = Origin(
        module=None,
        op="aten.div",
        phase="input",
        dtype="float32",
        rows=[4],
        values="1 inf",
        tensor="weights",
        shape=[5],
    )
    (said,) = weigh({"symptom": "nonfinite-loss", "samples": samples}, weights)
    assert (said.bits > 0) == found


@pytest.mark.parametrize(("found", "given"), [
    (True, {}),
    (False, {"divisor_by_batch": False}),
    (False, {"divisor_by_batch": None}),
    (False, {"rows": [0, 1, 2, 3]}),
    (False, {"rows": None}),
    (False, {"values": "1 inf"}),  # as of a time drawn at the end of its range
    (False, {"module": "retention"}),  # a constant of the model
])  # fmt: skip
def test_a_divisor_that_a_sample_alone_makes_zero(found, given):
    divided = Origin(**{
        "module": None, "op": "aten.div", "phase": "forward", "dtype": "float32", "rows": [2], "values": "1 nan",
        "shape": [4], "divisor": "1 of 4 elements of the divisor are 0", "divisor_by_batch": True, **given,
    })  # fmt: skip
    assert [one.bits > 0 for one in weigh({"symptom": "nonfinite-loss", "samples": [4]}, divided)] == [True] * found


def test_a_divisor_in_an_update_is_no_sample():
    divided = Origin(
        module=None, op="aten.div", phase="optimizer", dtype="float32", rows=[0], values="16 nan", shape=[25, 16],
        divisor="1 of 25 elements of the divisor are 0", divisor_by_batch=True,
    )  # fmt: skip
    assert not list(weigh({"symptom": "nonfinite-update"}, divided))


def mean_per_sample(tmp_path, *, empty, by_model=False):
    """Each sample's loss is a mean over what it keeps, and one of them keeps nothing."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 13):
            features = torch.randn(4, 8)
            keep = (torch.rand(4, 8) > 0.3).float()
            if step == 9 and empty:
                keep[2] = 0
            out = model(features)
            count = (keep * out.square()).sum(1) if by_model else keep.sum(1)
            loss = ((out - features).square() * keep).sum(1).div(count).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return [
        (i.step, i.origin.rows, [c.cause for c in i.causes if c.proved]) for i in diagnose(tmp_path / "run").incidents
    ]


def test_a_sample_that_keeps_nothing_is_proved(tmp_path):
    assert mean_per_sample(tmp_path, empty=True) == [(9, [2], ["bad-data-sample"])]


def test_not_where_the_model_makes_the_divisor(tmp_path):
    assert mean_per_sample(tmp_path, empty=True, by_model=True) == [(9, [2], [])]


def test_every_sample_keeps_something(tmp_path):
    assert not mean_per_sample(tmp_path, empty=False)
