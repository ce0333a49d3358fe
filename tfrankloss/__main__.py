"""`python -m tfrankloss`."""

from tfrankloss.cli import main

if __name__ == "__main__":
    main()
