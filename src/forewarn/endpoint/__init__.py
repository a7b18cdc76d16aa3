"""The metadata endpoint: what VMs talk to."""

from forewarn.endpoint.app import MetadataApp
from forewarn.endpoint.server import MetadataServer

__all__ = ["MetadataApp", "MetadataServer"]
