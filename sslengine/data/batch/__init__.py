"""Which samples are a batch, and how they are collated."""
