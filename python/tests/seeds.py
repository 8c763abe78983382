"""The seed of randomised tests: printed, and taken from QUIRE_TEST_SEED to run the same again."""

import os
import random


def seed() -> int:
    """A seed for this test; pytest shows what was printed when the test fails."""
    text = os.environ.get("QUIRE_TEST_SEED")
    n = int(text) if text else random.SystemRandom().getrandbits(32)
    print(f"QUIRE_TEST_SEED={n}")
    return n
