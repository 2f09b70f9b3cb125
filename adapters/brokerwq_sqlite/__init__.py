"""brokerwq on memory."""
