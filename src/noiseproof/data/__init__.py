"""Private records, and what is public about them."""
