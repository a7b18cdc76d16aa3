"""The pages, one noun a file."""
