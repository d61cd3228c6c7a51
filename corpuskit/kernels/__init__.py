"""Compiled loops over numbers and byte buffers; each has a plain-Python twin in the tests."""
