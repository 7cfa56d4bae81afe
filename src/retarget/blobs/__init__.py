"""Bytes: content-addressed blobs, and the streams of attempts that are still growing."""
