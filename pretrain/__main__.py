"""`python -m pretrain`."""

from pretrain.main import run

if __name__ == "__main__":
    run()
