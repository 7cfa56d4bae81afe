"""Hostile conditions: full disks, damaged homes, wrong clocks, bad scripts and other users."""
