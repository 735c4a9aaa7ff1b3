from finitune.chapter import causes
from finitune.diagnosis.cases import diagnose_case
from finitune.diagnosis.ranking import told_evidence

CASE = {"config": {"loss": "custom loss, squares summed in float16", "fp16": True}}


def test_fires_on_a_case_that_tells_of_it():
    (incident,) = diagnose_case(CASE).incidents
    assert "custom-loss-or-norm-fp16" in [cause.cause for cause in incident.causes[:3]]


def test_stays_quiet_where_nobody_speaks_of_it():
    (incident,) = diagnose_case({"config": {"bf16": True}}).incidents
    assert "custom-loss-or-norm-fp16" not in [cause.cause for cause in incident.causes if cause.bits > 0]
    assert told_evidence(causes()["custom-loss-or-norm-fp16"], {}) == []
