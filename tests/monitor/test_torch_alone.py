"""An environment that has torch and none of finitune's other packages: the run is watched and recorded all the same."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from finitune.diagnosis.recorded import diagnose

BLOCK = """
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


sys.meta_path.insert(0, Absent())
"""
PROGRAM = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(1, 9):
    x = torch.randn(8, 4)
    if step == 5:
        x[3] = 0.0
    features = x / x.norm(dim=1, keepdim=True)
    loss = model(features).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("weights", all(p.isfinite().all() for p in model.parameters()))
"""


def absent() -> set[str]:
    """What finitune asks for beside torch, and torch does not; torch's compiler wants numpy."""
    asked = map(Requirement, requires("finitune") or ())
    own = {one.name for one in asked if "dev" not in str(one.marker or "")}
    torch = {Requirement(line).name for line in requires("torch") or ()}
    modules = {"pyyaml": "yaml", "scikit-learn": "sklearn", "tree-sitter": "tree_sitter"}
    return {modules.get(name.lower(), name.replace("-", "_").lower()) for name in own - torch - {"torch", "numpy"}}


@pytest.mark.slow
def test_nothing_but_torch_is_needed_in_the_process_of_the_user(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    blocked = f"ABSENT = {sorted(absent())!r}\n{BLOCK}"
    start = tmp_path / "start.py"
    start.write_text(
        f"{blocked}\nimport os\nimport torch\nfrom finitune.integrations import any_program\nany_program.attach()\n"
        f"import runpy\nrunpy.run_path({str(program)!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, str(start)], capture_output=True, text=True, timeout=300, cwd=tmp_path,
        env={"FINITUNE_RUN_DIR": str(tmp_path / "run"), "PATH": "", "PYTHONPATH": source_of_finitune()},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "weights True\n"
    assert "Traceback" not in done.stderr
    assert "step 5: loss is nan. Update discarded" in done.stderr
    (incident,) = diagnose(tmp_path / "run").incidents  # by a Python that has the rest
    assert incident.step == 5
    assert incident.origin is not None


def source_of_finitune() -> str:
    import finitune

    return str(Path(finitune.__file__).parents[1]) + ":" + sysconfig.get_path("purelib")
