"""What is computed again warns of nothing, and hides nothing of what the program is warned of."""

from __future__ import annotations

import warnings

import pytest
import torch

from finitune.monitor.probes.quiet import without_warnings


def warned_in_the_program():
    warnings.warn("of the program", stacklevel=1)


def test_what_the_program_was_warned_of_is_not_shown_again(recwarn):
    warnings.resetwarnings()
    warnings.simplefilter("default")
    for _ in range(3):
        warned_in_the_program()
        with without_warnings():
            torch.ones(1).std()
    assert [str(one.message) for one in recwarn] == ["of the program"]


@pytest.mark.filterwarnings("error")
def test_where_warnings_are_errors_none_is_raised():
    with without_warnings():
        warned_in_the_program()
    with pytest.raises(UserWarning, match="of the program"):
        warned_in_the_program()
