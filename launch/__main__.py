"""List the launchers."""

import importlib
import sys

from launch.common import MISTAKE

LAUNCHERS = ("local", "ssh", "slurm", "tpu_pod", "gke")


def main() -> int:
    """Print one line per launcher; return exit code 2, as none was named."""
    print("launch: name a launcher; each has --help", file=sys.stderr)
    for name in LAUNCHERS:
        summary = importlib.import_module(f"launch.{name}").__doc__.splitlines()[0]
        print(f"  python -m launch.{name:<8} {summary}", file=sys.stderr)
    return MISTAKE


if __name__ == "__main__":
    sys.exit(main())
