"""What the reference pages are made of, a file for each kind."""
