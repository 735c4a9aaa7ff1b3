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


def computed(rows: list[int]) -> float:
    origin = Origin(module=None, op="aten.div", phase="input", dtype="float32", values="nan", rows=rows, shape=[4, 2])
    return sum(e.bits for e in weigh({}, origin))


def test_what_the_loop_computes_of_the_batch_accuses_some_samples_or_none():
    assert computed([2]) > 5
    assert computed([0, 1, 2, 3]) < 0


def test_a_batch_that_is_bad_where_the_program_died_accuses_its_sample():
    crash = {"symptom": "crash", "batch": [{"name": "input 0", "values": "9 nan, 0 inf", "sample": 2}]}
    assert sum(e.bits for e in weigh(crash)) == 6
    assert not list(weigh({**crash, "batch": [{"inputs": {"input 0": "float32 [8, 1]"}}]}))
    assert not list(weigh({**crash, "symptom": "nonfinite-loss"}))


def test_a_target_that_ctc_cannot_align_accuses_its_sample():
    ctc = {"module": None, "op": "aten._ctc_loss", "phase": "forward", "dtype": "float32"}
    assert sum(e.bits for e in weigh({}, Origin(**ctc, values="1 inf"))) > 6
    assert not list(weigh({}, Origin(**ctc, values="1 nan"))), "log probabilities that are NaN"
