"""Doubles of what the package talks to: stores that misbehave, and engines."""
