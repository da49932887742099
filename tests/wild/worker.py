"""The process that tries models: what goes wrong in it leaves the runner alone."""

from multiprocessing.connection import Connection

from wild import site
from wild.libraries import specimens
from wild.trials import trial_of


def serve(library: str, command: str, channel: Connection) -> None:
    """Say the names of a library's models, then try each that is asked for, until None is.

    Sends `("names", list)` once; then for each model `("stage", text)`, and `("record", dict)` at its end.

    Args:
        library: the package.
        command: what is tried, see `TRIALS`.
        channel: to the runner.
    """
    site.enter()
    attempt = trial_of(command)
    found = {specimen.name: specimen for specimen in specimens(library)}
    version = site.version(library)
    channel.send(("names", (version, list(found))))
    while (name := channel.recv()) is not None:
        record = attempt(found[name], version, lambda stage: channel.send(("stage", stage)))
        channel.send(("record", record.as_dict()))
