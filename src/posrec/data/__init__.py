"""From raw click log to batches of sessions."""
