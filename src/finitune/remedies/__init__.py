"""The remedies: one file per cure. `finitune.remedy` says what a chapter may declare."""
