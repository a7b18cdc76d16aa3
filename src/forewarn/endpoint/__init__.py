"""Metadata endpoint for VMs."""

from forewarn.endpoint.app import MetadataApp
from forewarn.endpoint.server import MetadataServer

__all__ = ["MetadataApp", "MetadataServer"]
