"""How finitune gets into training programs: one file per framework."""
