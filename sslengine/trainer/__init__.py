"""The loop over phases and steps."""
