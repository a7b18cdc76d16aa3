"""Notifications of subscribers: the outbox, a worker for each subscription, signatures."""
