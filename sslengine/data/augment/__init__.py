"""What is done to the pixels of an image."""
