"""Mathematics that methods share: tensors in, a scalar out."""
