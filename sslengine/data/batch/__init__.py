"""Which samples are a batch, and how it is put together."""
