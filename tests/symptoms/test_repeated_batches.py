from __future__ import annotations

import pytest
from tests.symptoms.runs import NAN, seen, series

from finitune.symptoms.repeated_batches import IN_A_ROW, see


def fired(repeats):
    return [sighting.step for sighting in seen(see, series(repeats))]


def test_fires_when_the_batch_has_not_changed_for_long():
    assert fired([0] * 100 + [1] * 20)[0] == 100 + IN_A_ROW


def test_fires_after_rows_that_were_much_shorter():
    epochs = [0, 1, 1, 1] * 50
    assert fired(epochs + [0] + [1] * 30)[0] == 201 + IN_A_ROW


@pytest.mark.parametrize(
    "repeats",
    [
        [0, *[1] * 400],  # one batch for ever, on purpose
        [0, 1, 1, 1] * 100,  # PPO
        ([0] + [1] * 19) * 30,  # many epochs over one batch
        ([0] * 3 + [1] * 7) * 20 + [0] + [1] * 25,  # and for once more
        [0] * 300,
        [NAN] * 100,
    ],
)
def test_stays_quiet_on_what_is_done_on_purpose(repeats):
    assert fired(repeats) == []
