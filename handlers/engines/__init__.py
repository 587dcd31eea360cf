"""Ways to run a model on a batch of tensors."""
