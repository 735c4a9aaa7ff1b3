"""The driver or the device reports a fault of its own.

## What it means

Memory of the card lost bits beyond what it corrects, or the card left the bus. The run is not at fault.

## How it is seen

In a log: `uncorrectable ECC error`, `NVRM: Xid`, `fallen off the bus`.
"""
