"""Mode `heal`: what a proved cause is cured with while the run goes on, and undone where it does not hold."""
