"""`python -m hydraplan`."""

from hydraplan.cli import main

if __name__ == "__main__":
    main()
