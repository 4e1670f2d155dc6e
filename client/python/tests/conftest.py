"""How much hypothesis tries: a hundred of each by default, thousands with KPROBED_VM_EFFORT=full.
No deadlines: machines are noisy.
"""

import os

from hypothesis import settings

settings.register_profile("ci", deadline=None, max_examples=100, database=None)
settings.register_profile("full", deadline=None, max_examples=5000, database=None)
settings.load_profile("full" if os.environ.get("KPROBED_VM_EFFORT") == "full" else "ci")
