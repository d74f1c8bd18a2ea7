"""The paper's experiment: ``python -m benchmarks.ocnn``."""

from benchmarks.ocnn.train import main

if __name__ == "__main__":
    main()
