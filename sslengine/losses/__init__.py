"""Functions of tensors that several methods use."""
