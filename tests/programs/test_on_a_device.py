"""What is known of a program on the CPU is known of it on a device that the host may not wait for."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.programs.trial import tried
from tests.programs.truth import truths

HERE = Path(__file__).parent
TRUTHS = truths(HERE)
BEFORE = (
    f"import sys; sys.path.insert(0, {str(HERE.parents[1])!r}); import torch; import tests.device.counting as c; "
    "c.install(); torch.set_default_device('counting')"
)
PROGRAMS = {
    "barzilai_borwein_hinge": "an optimizer of its own",
    "sparse_dictionary_unit_atoms": "an optimizer that projects",
    "clock_faces_hypergradient": "weights that the loop writes itself",
    "scaffold_warm_restarts_hospitals": "gradients that the loop edits",
    "accumulate_and_clip": "healthy",
    "domain_reversal_lamb": "healthy, with an optimizer of its own",
}


@pytest.mark.programs
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_on_the_counting_device(name: str, tmp_path: Path) -> None:
    """The line that imports torch installs the device, so that every other line is where it was."""
    text = (HERE / f"{name}.py").read_text(encoding="utf-8")
    assert "\nimport torch\n" in f"\n{text}"
    (tmp_path / f"{name}.py").write_text(f"\n{text}".replace("\nimport torch\n", f"\n{BEFORE}\n", 1)[1:])
    (tmp_path / "truth.yaml").write_text(yaml.safe_dump({name: dict(TRUTHS[name])}))
    trial = tried(tmp_path, name, TRUTHS[name], tmp_path / "run")
    assert not (wrong := trial.wrong()), wrong
