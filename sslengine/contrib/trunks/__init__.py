"""Networks of VISSL that few use."""
