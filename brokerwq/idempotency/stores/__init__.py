"""The stores; each imports its client library when it is first used."""
