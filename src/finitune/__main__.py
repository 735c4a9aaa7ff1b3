"""`python -m finitune` is the command line."""

from finitune.cli import main

raise SystemExit(main())
