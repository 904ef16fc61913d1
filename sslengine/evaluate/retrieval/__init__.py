"""Images that are found by an image: `ranks.py` ranks, the other files say what should be found."""
