"""The story of every example passes, each in an environment that has what it needs: `make systems`, as tests."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from finitune.demo import story, systems


@pytest.mark.slow
@pytest.mark.story
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", story.stories())
def test_the_story_passes(name, tmp_path, monkeypatch):
    python, lacking = systems.environment(story.stories()[name])
    if python is None:
        pytest.skip(f"no environment has {lacking}")
    monkeypatch.chdir(tmp_path)
    assert systems.main([name]) == 0
