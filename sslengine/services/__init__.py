"""Services: what the engine does after all hooks of an event, in one order (order.py)."""
