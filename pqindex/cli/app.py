"""The command `pqindex`: its verbs, and the one place where errors become exit codes.

Exit codes: 0 done; 1 a check found something; 2 wrong use or input; 130 interrupted.
"""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Sequence

import click

from pqindex import __version__
from pqindex.cli.build import build
from pqindex.cli.cache import cache
from pqindex.cli.demo import demo
from pqindex.cli.doctor import doctor
from pqindex.cli.info import info, show
from pqindex.cli.options import Session
from pqindex.cli.output import print_error, print_note, print_text
from pqindex.cli.pin import pin
from pqindex.cli.query import query
from pqindex.cli.refresh import compact, refresh, snapshots
from pqindex.cli.rewrite import rewrite
from pqindex.cli.verify import verify
from pqindex.errors import PqindexError
from pqindex.readplan import PqindexStalenessWarning

DONE, FOUND, WRONG, INTERRUPTED = 0, 1, 2, 130


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 a check found something, 2 wrong use or input.",
)
@click.version_option(__version__, prog_name="pqindex")
@click.option("--debug", is_flag=True, help="Show the traceback of an error (or set PQINDEX_DEBUG=1).")
@click.pass_context
def commands(context: click.Context, debug: bool) -> None:
    """Index Parquet files, pick sequences with SQL, pin them, train on them."""
    context.ensure_object(Session).debug |= debug
    if context.invoked_subcommand is None:
        print_text(context.get_help())


for verb in (
    build,
    refresh,
    doctor,
    info,
    query,
    pin,
    show,
    verify,
    snapshots,
    compact,
    rewrite,
    cache,
    demo,
):
    commands.add_command(verb)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    args : sequence of str, optional
        The words after ``pqindex``; those of the process by default.

    Returns
    -------
    int
        0, 1, 2 or 130. Nothing is raised but SystemExit by the interpreter itself.
    """
    session = Session(debug=os.environ.get("PQINDEX_DEBUG", "") not in {"", "0"})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", PqindexStalenessWarning)
            warnings.showwarning = _print_warning
            code = commands.main(args=args, prog_name="pqindex", standalone_mode=False, obj=session)
        return code if isinstance(code, int) else DONE
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last stop before the user, who wants one line
        if session.debug:
            traceback.print_exc()
        print_error(_sentence(error))
        return WRONG


def _print_warning(message: Warning | str, *_where: object, **_how: object) -> None:
    print_note(f"warning: {message}")


def _sentence(error: Exception) -> str:
    if isinstance(error, click.UsageError):
        asked = error.ctx.command_path if error.ctx else "pqindex"
        return f"{error.format_message().rstrip('.')}. Hint: {asked} --help"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, PqindexError):
        return str(error)
    if isinstance(error, OSError):
        said = error.strerror or str(error)
        return f"{said}: {error.filename}" if error.filename else said
    return f"unexpected {type(error).__name__}: {error}. Hint: run with --debug and report what it shows"
