"""A process for each contender, so that libraries, threads, memory and crashes stay apart."""

from __future__ import annotations

import multiprocessing
import os
import traceback
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.adapters import EVERYONE
from benchmarks.shapes import Source

WAIT_S = 180.0


class HostError(Exception):
    """A contender failed, died or did not answer; the text says why."""


class Host:
    """The parent's end of a contender's process.

    A measure that fails ends the process: whatever state it is in would not be the contender's fault alone.
    """

    def __init__(self, name: str, source: Source, home: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, name, source, home, multiprocessing.get_start_method())
        self._process = context.Process(target=_serve, args=arguments)
        self._process.start()
        theirs.close()
        self.reads_at_random = True

    def wait_until_ready(self) -> None:
        """Wait for the imports, and learn whether the contender is a stream."""
        self.reads_at_random = self._answer()

    def measure(self, measure: str, *arguments: Any) -> Any:
        """Return what a measure gives in that process.

        Raises
        ------
        HostError
            If it fails, the process dies, or there is no answer for three minutes.
        """
        try:
            self._connection.send((measure, arguments))
        except OSError as error:
            raise HostError(self._end()) from error
        return self._answer()

    def stop(self) -> None:
        """End the process, and what it started."""
        try:
            self._connection.send(None)
            self._process.join(10)
        except OSError:
            pass
        self._kill()

    def _answer(self) -> Any:
        try:
            if not self._connection.poll(WAIT_S):
                self._kill()
                raise HostError(f"no answer for {WAIT_S:.0f} s")
            failure, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise HostError(self._end()) from error
        if failure is not None:
            self._kill()
            raise HostError(failure)
        return answer

    def _end(self) -> str:
        self._kill()
        return f"its process ended with code {self._process.exitcode}"

    def _kill(self) -> None:
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


def _serve(connection: Connection, name: str, source: Source, home: Path, start_method: str) -> None:
    # a spawned process would spawn its own workers; those of a user are started as the platform does
    multiprocessing.set_start_method(start_method, force=True)
    warnings.simplefilter("ignore")  # of peers, about what is not measured
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        import torch

        from benchmarks.adapters.base import stacked
        from benchmarks.measures import MEASURES

        torch.set_num_threads(1)
        stacked(pa.table({"x": pa.array([0.0], pa.float32())}))  # PyArrow looks for pandas at its first use
        adapter = EVERYONE[name].load()(source, home)
        connection.send((None, adapter.reads_at_random))
        while (asked := connection.recv()) is not None:
            measure, arguments = asked
            connection.send((None, MEASURES[measure](adapter, *arguments)))
    except EOFError:
        pass
    except BaseException as error:  # noqa: BLE001  # whatever a peer raises goes into the notes
        traceback.print_exc()
        last = f"{type(error).__name__}: {error}".strip().splitlines()[-1]
        connection.send((last[:200].rstrip("."), None))
