"""Where images come from: one file per kind of source."""
