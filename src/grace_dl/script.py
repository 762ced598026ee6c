"""Runs a script as ``python`` would, with GRACE's packages and Horovod's name in place."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from grace.errors import ConfigurationError, GraceError
from grace_dl import network
from grace_dl.horovod import stand_in

_OF_TENSORFLOW_1 = ("module 'tensorflow", "tensorflow.contrib", "tensorflow.examples", "tensorflow.python.keras")


def run(path: str, arguments: Sequence[str]) -> int:
    """Runs the script and returns its exit status. Its own error is shown with its own lines, and ends the other workers.

    Raises:
        ConfigurationError: there is no such script.
    """
    if not Path(path).is_file():
        raise ConfigurationError(f"there is no script {path!r}")
    if importlib.util.find_spec("tf_keras") is not None:
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # GRACE's scripts were written for Keras 2
    which = stand_in()
    if all(os.environ.get(name, "0") == "0" for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")):
        sys.stderr.write(f"grace: {Path(path).name} runs with {which} for Horovod\n")
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        own = _skip_to(path, error.__traceback__)
        traceback.print_exception(type(error), error, own)
        if hint := _find_hint(error):
            sys.stderr.write(f"grace: {hint}\n")
        network.fail(error)
        return 1
    return 0


def _skip_to(path: str, first: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's own first line on."""
    place = first
    while place is not None and place.tb_frame.f_code.co_filename != path:
        place = place.tb_next
    return place or first


def _find_hint(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, AttributeError | ModuleNotFoundError) and any(sign in text for sign in _OF_TENSORFLOW_1):
        return (
            "this looks like a script for TensorFlow 1: graphs with sessions and placeholders do not run on TensorFlow 2, "
            "with or without Grace. Rewrite the step with tf.GradientTape, as in GRACE's TensorFlow 2 examples"
        )
    in_keras = any("/keras/" in line for line in traceback.format_tb(error.__traceback__))
    if in_keras and not isinstance(error, GraceError) and importlib.util.find_spec("tf_keras") is None:
        return "scripts for GRACE know Keras 2, and this is Keras 3: pip install tf_keras, and run it again"
    return ""
