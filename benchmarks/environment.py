"""Run the measurements beside all peers, in a virtual environment of their own: ``python -m benchmarks.environment``.

The environment is made once for each state of the pins. pqindex and torch come with what they depend on; the
peers of ``peers.txt`` come without, for that file names all that they need here. Some of them ask for clients of
clouds, for older versions than the rest can live with, or for a torchvision that fails beside a CPU torch.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
PINS = (ROOT / "constraints.txt", ROOT / "benchmarks" / "peers.txt", ROOT / "pyproject.toml")


def state_of_pins() -> str:
    """Return a digest of all that decides what is installed."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in PINS)).hexdigest()


def install_commands(python: Path) -> list[list[str]]:
    """Return the commands that fill an environment, in order."""
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return [
        [*pip, "-c", str(ROOT / "constraints.txt"), "-e", f"{ROOT}[torch]"],
        [*pip, "--no-deps", "-r", str(ROOT / "benchmarks" / "peers.txt")],
    ]


def ready(folder: Path) -> Path:
    """Return the Python of an environment that is as the pins say; it is made, or made again, if it is not."""
    python = folder / "bin" / "python"
    stamp = folder / "pins.sha256"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != state_of_pins():
        click.echo(f"install the peers in {folder}", err=True)
        venv.create(folder, clear=True, with_pip=True)
        for command in install_commands(python):
            subprocess.run(command, check=True)
        stamp.write_text(state_of_pins(), encoding="utf-8")
    return python


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--environment",
    type=click.Path(path_type=Path),
    default=ROOT / "build" / "benchmarks-venv",
    help="Where the environment is, or is made.",
)
@click.option("--lives", is_flag=True, help="Run benchmarks.epochs instead of benchmarks.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(*, environment: Path, lives: bool, arguments: tuple[str, ...]) -> None:
    """Run ``python -m benchmarks ARGUMENTS`` where all peers are installed; paths count from the repository."""
    module = "benchmarks.epochs" if lives else "benchmarks"
    try:
        python = ready(environment.absolute())
        done = subprocess.run([str(python), "-m", module, *arguments], cwd=ROOT, check=False)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"the environment cannot be made: {error}") from error
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
