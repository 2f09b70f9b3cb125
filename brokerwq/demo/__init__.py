"""What ``brokerwq demo`` runs: thumbnails of every picture below a folder."""
