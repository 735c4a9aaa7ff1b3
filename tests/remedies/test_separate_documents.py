from finitune.facts import Batching, Hardware
from finitune.remedies.separate_documents import propose

PACKED = Batching(packing=True)


def test_fires_with_a_kernel_that_takes_lengths():
    assert propose(Hardware(name="A100", bfloat16=True), PACKED).patch == {"attn_implementation": "flash_attention_2"}


def test_stays_quiet_about_that_kernel_on_a_card_without_it():
    assert propose(Hardware(name="T4", bfloat16=False), PACKED).patch == {"packing": False}
