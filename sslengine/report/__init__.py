"""The page of a run: one HTML file that says whether the run is good, and what to do next."""
