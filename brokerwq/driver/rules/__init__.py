"""What particular brokers insist on: limits, legal names and characters, as pure functions.

Here rather than in an adapter, because three ask it and none of them may import another: the
broker's own adapter, the memory broker that behaves like it, and the stub that tests use. The
core asks ``Capabilities`` and never this.
"""
