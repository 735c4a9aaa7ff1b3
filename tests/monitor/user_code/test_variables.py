"""Attributes that are there without running anything."""

from __future__ import annotations

import ast

import pytest

from finitune.monitor.user_code.variables import value_of


class Settings(dict):
    """Whose keys are attributes too, as trainers keep hyperparameters."""

    def __getattr__(self, key):
        raise AssertionError("nothing of the user's is called")


class Trained:
    def __init__(self):
        self._settings = Settings(rate=0.5)
        self._ready = False

    @property
    def settings(self):
        """As they are."""
        if not hasattr(self, "_settings"):
            self._settings = Settings()
        return self._settings

    @property
    def ready(self):
        if not self._ready:
            return self._settings
        return self._ready

    @property
    def absent(self):
        return self._absent


def read(text, **names):
    return value_of(ast.parse(text, mode="eval").body, names, "unknown")


def test_what_a_property_returns_as_it_is():
    one = Trained()
    assert read("one.settings", one=one) is one._settings
    assert read("one.settings.rate", one=one) == 0.5


@pytest.mark.parametrize("name", ["ready", "absent"])
def test_a_property_that_does_more_or_has_nothing_yet_stays_one(name):
    assert isinstance(read(f"one.{name}", one=Trained()), property)


def test_what_c_would_compute_is_not_known():
    """As `rows, columns = x.shape` asks for it: it is computed as an expression."""
    torch = pytest.importorskip("torch")
    assert read("x.shape", x=torch.ones(2, 3)) == "unknown"
    assert read("x.sum", x=torch.ones(2, 3)) is not None


def test_methods_of_a_dictionary_are_no_keys():
    settings = Settings(items=3)
    assert callable(settings.items)
    assert read("settings.rate", settings=settings) == "unknown"
    assert read("settings.items", settings=settings) != 3
