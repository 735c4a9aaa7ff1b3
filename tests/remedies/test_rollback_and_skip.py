import pytest

from finitune.remedies.rollback_and_skip import propose
from finitune.repairs.repair import repair


@pytest.mark.slow
def test_fires_where_a_run_has_found_the_batches(tmp_path):
    """Only a run that was healed knows them; what it did is said for the user's data."""
    pytest.importorskip("torch")
    from tests.monitor.heal.test_rollback_and_skip import Shards, healed

    healed(Shards((40,), unit=1e4), tmp_path / "run")
    (done,) = repair(from_run=tmp_path / "run").by_hand
    assert (done.remedy.name, list(done.places)) == ("rollback-and-skip", ["the batch of step 40"])


def test_stays_quiet_elsewhere():
    assert propose() is None
