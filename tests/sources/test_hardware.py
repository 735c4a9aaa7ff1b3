import pytest
from tests.sources.worlds import one_line

from finitune.finding import UnreadableInput
from finitune.sources import hardware


@pytest.mark.parametrize(
    ("name", "known", "bfloat16"),
    [
        ("V100", "V100", False), ("Tesla V100-SXM2-32GB", "V100", False), ("t4", "T4", False), ("p100", "P100", False),
        ("2080Ti", "RTX 2080 Ti", False), ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti", False),
        ("a10", "A10", True), ("NVIDIA A100-SXM4-80GB", "A100", True), ("a100 40gb", "A100", True),
        ("A6000", "RTX A6000", True),
        ("rtx-3090", "RTX 3090", True), ("4090", "RTX 4090", True), ("L4", "L4", True), ("l40", "L40", True),
        ("NVIDIA H100 80GB HBM3", "H100", True), ("H200", "H200", True),
    ],
)  # fmt: skip
def test_names_in_many_spellings(name, known, bfloat16):
    found = hardware.read(name)
    assert (found.name, found.bfloat16) == (known, bfloat16)


def test_memory_is_what_the_name_says_or_the_common_variant():
    assert hardware.read("A100 40GB").memory_gib == 40
    assert hardware.read("A100").memory_gib == 80


@pytest.mark.parametrize(
    ("name", "hint"),
    [("V10", "did you mean V100?"), ("a1000", "A100"), ("zzzz", "expected one of"), ("", "expected one of")],
)
def test_an_unknown_card_lists_the_known_ones(name, hint):
    with pytest.raises(UnreadableInput) as caught:
        hardware.read(name)
    text = one_line(caught.value)
    assert hint in text
    assert "H200" in text


def test_no_two_cards_share_a_spelling():
    assert len({hardware._key(name) for name in hardware.KNOWN}) == len(hardware.KNOWN)
