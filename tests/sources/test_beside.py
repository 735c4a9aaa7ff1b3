"""A file that is named relatively lies beside the file that names it or in its project, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from finitune import check
from finitune.finding import CheckResult
from finitune.sources.configs.beside import beside, root_of

SETTINGS = "learning_rate: 1.0e-5\nfp16: true\ndeepspeed: ds.json\nmodel_name_or_path: base\ntrain_file: rows.jsonl\n"
ZERO = '{"fp16": {"enabled": true}, "zero_optimization": {"stage": 2}}'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "outer" / "project" / "conf" / "deep" / "a.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(SETTINGS)
    return path


def with_files(folder: Path) -> None:
    (folder / "base").mkdir()
    (folder / "base" / "config.json").write_text('{"model_type": "llama"}')
    (folder / "ds.json").write_text(ZERO)
    (folder / "rows.jsonl").write_text('{"text": "a"}\n')


def taken(result: CheckResult) -> list[str]:
    return [line for line in result.understood if "named by" in line]


@pytest.mark.parametrize("above", range(1, 5))
def test_stays_quiet_about_files_of_folders_above(config: Path, above: int) -> None:
    with_files(config.parents[above])
    result = check(config)
    assert not taken(result)
    whys = " ".join(one.why for one in result.not_checked)
    assert "names ds.json, which is not here" in whys
    assert "base, which" in whys
    assert f"rows.jsonl, which {config} names, is not here" in whys
    assert result.verdict == "incomplete"


@pytest.mark.parametrize("above", range(3))
@pytest.mark.parametrize("mark", [".git", "pyproject.toml", "README.md"])
def test_fires_beside_the_file_and_in_the_root_of_its_project(config: Path, above: int, mark: str) -> None:
    with_files(config.parents[above])
    (config.parents[above] / mark).mkdir()
    assert len(taken(check(config))) == 3


def test_fires_in_the_working_directory_above_the_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_files(config.parents[2])
    monkeypatch.chdir(config.parents[2])
    assert len(taken(check("conf/deep/a.yaml"))) == 3


def test_stays_quiet_about_the_working_directory_of_somebody_elsewhere(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    with_files(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert not taken(check(config))


def test_a_folder_that_everybody_may_write_to_is_no_project(config: Path) -> None:
    public = config.parents[2]
    with_files(public)
    (public / ".git").mkdir()
    public.chmod(0o1777)
    assert not taken(check(config))
    assert root_of(config) == config.parent


def test_the_root_leads_to_nothing_outside_it(config: Path) -> None:
    with_files(config.parents[3])
    (config.parents[2] / ".git").mkdir()
    assert not beside(str(config), "../ds.json").exists()
