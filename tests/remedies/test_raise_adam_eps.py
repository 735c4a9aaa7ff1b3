from finitune.facts import Optimizer
from finitune.remedies.raise_adam_eps import propose


def test_fires_for_an_eps_that_float16_cannot_hold():
    assert propose(Optimizer(eps=1e-8)).patch == {"adam_epsilon": 1e-5}


def test_stays_quiet_where_eps_is_large_already():
    assert propose(Optimizer(eps=1e-4)) is None
