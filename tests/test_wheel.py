"""The wheel holds every file of the package, and works where only the declared core dependencies are installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import finitune

REPOSITORY = Path(__file__).parent.parent


def run(*command: str | Path, **more: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, cwd=REPOSITORY, **more)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    source = Path(finitune.__file__).parent
    files = {p.relative_to(source.parent) for p in source.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    with zipfile.ZipFile(wheel) as archive:
        held = {Path(name) for name in archive.namelist()}
        entry_points = archive.read(next(n for n in archive.namelist() if n.endswith("entry_points.txt"))).decode()
    assert Path("finitune/py.typed") in held
    assert files <= held
    assert not [
        path for path in held if path.parts[0] not in ("finitune", f"finitune-{finitune.__version__}.dist-info")
    ]
    assert "finitune = finitune.cli.main:main" in entry_points


def core_distributions(wheel: Path) -> set[str]:
    """The declared core dependencies and theirs, without any extra."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))).decode()
    wanted = [line.partition(": ")[2] for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    found: set[str] = set()
    while wanted:
        need = Requirement(wanted.pop())
        name = canonicalize_name(need.name)
        if name not in found and (need.marker is None or need.marker.evaluate({"extra": ""})):
            found.add(name)
            wanted += requires(need.name) or []
    return found


@pytest.mark.slow
def test_the_wheel_works_with_its_core_dependencies_alone(wheel: Path, tmp_path: Path) -> None:
    """An environment with links to exactly those distributions, so that nothing needs to be fetched."""
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    binaries = environment / "bin"
    site = Path(run(binaries / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    names = core_distributions(wheel)
    assert "numpy" in names
    assert "torch" not in names
    for name in names:
        installed = distribution(name)
        tops = {file.parts[0] for file in installed.files or [] if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            (site / top).symlink_to(Path(str(installed.locate_file(top))))
    run(sys.executable, "-m", "pip", "--python", binaries / "python", "install", "--no-deps", "--no-index", wheel)

    clean = {"PATH": str(binaries), "HOME": str(tmp_path)}
    where = run(binaries / "python", "-c", "import finitune; print(finitune.__file__)", env=clean)
    assert where.startswith(str(environment))
    assert "untrained-token-embeddings" in run(binaries / "finitune", "causes", env=clean)
    assert "Usage" in run(binaries / "finitune", "--help", env=clean)
