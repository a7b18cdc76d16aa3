"""What Forewarn is compared with: servers that answer the same bytes."""
