"""Live remedies, one file each under the name of the remedy chapter whose prose it shares; see `heal.cure`."""
