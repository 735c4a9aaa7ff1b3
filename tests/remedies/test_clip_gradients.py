from finitune.facts import Optimizer
from finitune.remedies.clip_gradients import propose


def test_fires_where_clipping_is_off():
    assert propose(Optimizer(clip=0.0)).patch == {"max_grad_norm": 1.0}


def test_stays_quiet_where_gradients_are_clipped():
    assert propose(Optimizer(clip=0.3)) is None
