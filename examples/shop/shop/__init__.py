"""A shop that charges cards, sends receipts and reminds of what was left in the cart."""
