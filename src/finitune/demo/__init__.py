"""The founding incidents, broken and cured, offline."""
