import pytest

from finitune.remedies.shrink_embedding_updates import propose
from finitune.repairs.repair import repair


@pytest.mark.slow
def test_fires_where_a_run_has_found_the_embedding(tmp_path):
    pytest.importorskip("torch")
    from tests.monitor.heal.leading import Leading
    from tests.monitor.heal.test_shrink_embedding_updates import healed

    healed(Leading(), tmp_path / "run")
    result = repair(from_run=tmp_path / "run")
    assert [one.remedy.name for one in result.by_hand] == ["shrink-embedding-updates"]


def test_stays_quiet_elsewhere():
    assert propose() is None
