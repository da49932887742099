"""Run programs one after the other, as if each were started; print as JSON what each printed."""

import contextlib
import io
import json
import runpy
import sys

import torch


def main(paths: list[str]) -> None:
    found, threads = {}, torch.get_num_threads()
    for path in paths:
        torch.set_num_threads(threads)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(path, run_name="__main__")
        found[path] = printed.getvalue()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
