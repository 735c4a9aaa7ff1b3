"""The remedies: one file each. `finitune.chapter` says what a chapter may declare."""
