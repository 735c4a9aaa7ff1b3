"""`python -m finitune` is the command line."""

from finitune.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
