"""`python -m noiseproof` is `noiseproof`."""

from noiseproof.cli import main

if __name__ == "__main__":
    main()
