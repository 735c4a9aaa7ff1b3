"""Programs as strangers write them: what finitune says of each is what is true, and a healthy one runs as without it.

`make test-programs` runs them; `make programs` prints them as one table.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.programs.trial import tried
from tests.programs.truth import truths

HERE = Path(__file__).parent
TRUTHS = truths(HERE)
OPEN = yaml.safe_load((HERE / "open.yaml").read_text(encoding="utf-8"))
"""Program -> aspects in which finitune is known to be wrong today; `make programs` counts them as wrong."""


@pytest.mark.programs
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TRUTHS)
def test_a_program_of_a_stranger(name: str, tmp_path: Path) -> None:
    trial = tried(HERE, name, TRUTHS[name], tmp_path)
    if trial.missing:
        pytest.skip(trial.missing)
    assert not (wrong := trial.wrong(OPEN.get(name, ()))), wrong
