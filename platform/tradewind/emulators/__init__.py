"""Emulated clouds on loopback, for tests without an account: the vendors' own SDKs talk to them over HTTP.

Each module says what it simulates and what it does not. State is one object that the test holds; time is injected.
"""
