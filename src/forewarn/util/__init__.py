"""General-purpose code: durations, time zones, ids, secrets, text escaping, fair queues."""
