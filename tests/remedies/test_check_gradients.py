from finitune.facts import Parallel
from finitune.remedies.check_gradients import propose


def test_fires_for_the_stages_that_read_the_key():
    assert propose(Parallel(zero_stage=2)).patch == {"bf16.check_grad_overflow": True}


def test_stays_quiet_for_the_stage_that_does_not():
    assert propose(Parallel(zero_stage=3)) is None


def test_stays_quiet_for_releases_that_do_not_know_the_key():
    assert propose(Parallel(zero_stage=2), {"deepspeed": "0.16.9"}) is None
