"""``python -m relumine``: the command line."""

from relumine.cli import main

if __name__ == "__main__":
    main()
