from finitune.chapter import causes
from finitune.diagnosis.cases import diagnose_case
from finitune.diagnosis.ranking import told_evidence

CASE = {"framework": "torchtune", "config": {"version_good": "0.5.0", "version_bad": "0.6.0"}}


def test_fires_on_a_case_that_tells_of_it():
    (incident,) = diagnose_case(CASE).incidents
    assert "library-version-regression" in [cause.cause for cause in incident.causes[:1]]


def test_stays_quiet_where_nobody_speaks_of_it():
    (incident,) = diagnose_case({"config": {"fp16": True}}).incidents
    assert "library-version-regression" not in [cause.cause for cause in incident.causes if cause.bits > 0]
    assert told_evidence(causes()["library-version-regression"], {}) == []
