"""Simulation of a whole cluster in one process: replicas, hosts, VMs with agents, and everything that can fail.

All parts are Forewarn's own code. Time, network, database and disks are simulated. Everything follows from one seed.
"""
