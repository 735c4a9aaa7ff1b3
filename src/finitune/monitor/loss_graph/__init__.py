"""The loss as a function of what the model puts out, read off the autograd graph."""
