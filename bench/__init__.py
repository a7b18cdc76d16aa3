"""The benchmark of Forewarn: `python -m bench`, or `make bench`.

Each part starts the measured program as a separate process, pinned to core 1, and generates the load on core 0.
"""
