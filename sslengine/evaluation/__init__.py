"""How good are features? Judges that take features and labels, and know of no model."""
