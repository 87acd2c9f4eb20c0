"""What launchers there are, for whoever starts the package itself."""

import importlib
import sys

from launch import MISTAKE

LAUNCHERS = ("local", "ssh", "slurm", "tpu_pod", "gke")


def main() -> int:
    """Prints a line for each, and returns the exit code: 2, since none was named."""
    print("launch: name a launcher; each tells its options with --help", file=sys.stderr)
    for name in LAUNCHERS:
        what = importlib.import_module(f"launch.{name}").__doc__.splitlines()[0]
        print(f"  python -m launch.{name:<8} {what}", file=sys.stderr)
    return MISTAKE


if __name__ == "__main__":
    sys.exit(main())
