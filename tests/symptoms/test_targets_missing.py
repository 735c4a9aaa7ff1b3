from __future__ import annotations

import pytest
from tests.symptoms.runs import NAN, levels, seen, series

from finitune.symptoms.targets_missing import see


def test_fires_as_a_note_and_again_as_a_suspicion():
    assert levels(seen(see, series([40, 0, 0, 12], every=64))) == [(128, "note"), (192, "suspicion")]


@pytest.mark.parametrize("counts", [[40, 1, 12], [NAN]])
def test_stays_quiet_on_batches_with_targets(counts):
    assert seen(see, series(counts, every=64)) == []
