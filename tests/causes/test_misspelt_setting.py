"""Many keys of a file that nobody knows."""

from tests.causes.rows import found

from finitune.facts import UnknownKey


def test_keys_without_a_neighbour_are_one_finding_for_each_file():
    keys = [UnknownKey(file=file, key=f"k{i}", release="x 1") for file in "ab" for i in range(10)]
    first, second = found("misspelt-setting", unknown_keys=keys)
    assert [(one.where.file, one.severity) for one in (first, second)] == [("a", "info"), ("b", "info")]
    assert first.message == "k0, k1, k2, k3, k4, k5, k6, k7 and 2 more are no settings that are known here (x 1)"
    assert first.evidence["keys"] == [f"k{i}" for i in range(10)]
