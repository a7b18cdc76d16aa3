"""Transcripts of metadata endpoints: recording, replay, conversion into scenarios."""
