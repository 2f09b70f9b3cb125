"""From a function to a worker: its shape, its options, and the messages it makes.

``decorating`` is the way in: it reads a function's ``signature`` and the decorator's ``options``
into a ``plan``, and gives back a ``worker``.
"""
