"""`python -m noiseproof` is `noiseproof`."""

from __future__ import annotations

from noiseproof.cli import main

if __name__ == "__main__":
    main()
