"""brokerwq: one work queue over SQLite, RabbitMQ and Amazon SQS."""

__version__ = "0.1.0"
