"""Several scripts in one process, since it takes long to start."""

import pathlib
import runpy
import sys

scripts, sys.argv = sys.argv[1:], sys.argv[:1]
for name in scripts:
    runpy.run_path(str(pathlib.Path(__file__).parent / name), run_name="__main__")
