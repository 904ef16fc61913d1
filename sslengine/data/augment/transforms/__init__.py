"""What is done to a sample between its source and its batch."""
