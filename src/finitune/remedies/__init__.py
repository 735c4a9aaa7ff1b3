"""The remedies: one file per cure. `finitune.chapter` says what a chapter may declare."""
