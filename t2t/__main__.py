"""`python -m t2t`, for torchrun and for machines without the script."""

import sys

from t2t.cli import main

if __name__ == "__main__":
    sys.exit(main())
