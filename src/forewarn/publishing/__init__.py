"""Publication of documents: the feed, the watches of hosts, and the identity of callers."""
