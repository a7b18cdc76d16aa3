"""The benchmark of Forewarn: `python -m bench`, or `make bench`.

Every part starts what it measures as a process of its own, pinned to core 1, and puts the load on core 0.
"""
