"""General-purpose code: durations, files, ids, secrets, text escaping, fair queues."""
