"""Documents on their way to callers: the feed, the watches of hosts, and which caller is which VM."""
