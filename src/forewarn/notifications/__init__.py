"""Notifications to subscribers: the outbox, a worker for each subscription, signatures."""
