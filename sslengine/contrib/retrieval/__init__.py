"""VISSL's benchmark of instance retrieval: Oxford, Paris, Copydays, INSTRE."""
