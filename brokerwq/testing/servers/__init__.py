"""Private broker servers, for brokerwq's own tests and for yours.

``rabbitmq`` and ``localstack`` start one or find one that runs; ``moto`` is a second, quick SQS.
``postgres``, ``redis`` and ``dynamodb`` are there for stores of processed keys.
"""
