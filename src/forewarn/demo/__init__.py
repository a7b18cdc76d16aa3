"""`forewarn demo`: the main job from end to end, with a real service and VMs that react, in well under 30 s."""

from forewarn.demo.run import run_demo

__all__ = ["run_demo"]
