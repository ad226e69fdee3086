"""Runs one test file with pytest; exits with 77, which ctest counts as skipped, where something it needs is missing."""

import sys

missing = []
for module in ("numpy", "pytest"):
    try:
        __import__(module)
    except ImportError:
        missing.append(module)
if missing:
    print(f"skipped: {sys.executable} has no {' and no '.join(missing)} (apt-get install {' '.join('python3-' + m for m in missing)})")
    sys.exit(77)

import pytest  # noqa: E402

sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-rs", *sys.argv[1:]]))
