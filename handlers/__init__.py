"""What runs inside a TorchServe worker; see :mod:`handlers.base` for writing one of your own."""
