"""The agent in a VM: prepares for every event, approves when it is ready, recovers when the event is gone."""
