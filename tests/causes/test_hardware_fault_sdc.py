from finitune.causes import hardware_fault_sdc as chapter
from finitune.causes.hardware_fault_sdc import weigh


def test_fires_when_the_step_does_not_repeat():
    assert sum(e.bits for e in weigh(repeats=False, incident={"bad": ["w"], "tensors": 9})) > 0


def test_stays_quiet_when_the_step_repeats_and_before_any_run():
    assert sum(e.bits for e in weigh(repeats=True, incident={})) < 0
    assert not hasattr(chapter, "foresee")  # facts cannot show it
