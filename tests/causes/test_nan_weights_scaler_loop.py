from finitune.chapter import causes
from finitune.diagnosis.cases import diagnose_case
from finitune.diagnosis.ranking import told_evidence

CASE = {"log": ["step 9 loss nan, loss scale: 0.0"]}


def test_fires_on_a_case_that_tells_of_it():
    (incident,) = diagnose_case(CASE).incidents
    assert "nan-weights-scaler-loop" in [cause.cause for cause in incident.causes[:1]]


def test_stays_quiet_where_nobody_speaks_of_it():
    (incident,) = diagnose_case(
        {"config": {"learning_rate": 2e-05, "bf16": True}, "log": ["{'loss': 1.2, 'grad_norm': 0.5}"]}
    ).incidents
    assert "nan-weights-scaler-loop" not in [cause.cause for cause in incident.causes if cause.bits > 0]
    assert told_evidence(causes()["nan-weights-scaler-loop"], {}) == []
