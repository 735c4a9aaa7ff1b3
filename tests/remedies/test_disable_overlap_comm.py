from finitune.facts import Parallel
from finitune.remedies.disable_overlap_comm import propose


def test_fires_in_the_spelling_of_deepspeed():
    assert propose(Parallel(overlap_comm=True)).patch == {"zero_optimization.overlap_comm": False}


def test_stays_quiet_where_it_is_off_already():
    assert propose(Parallel(overlap_comm=False)) is None
