"""Which layer of a model raised an error."""

from types import FrameType

from torch import nn

from baechi.errors import note_where


def note_layer(error: BaseException, model: nn.Module, device: str) -> None:
    """Note the innermost module of a model that was running when an error was raised.

    The frames of the traceback tell: a module's `forward` has it as its first argument.
    """
    names = {id(module): name for name, module in model.named_modules()}
    found: nn.Module = model
    caught = error.__traceback__  # its frame has the error as a local: looking there would let it hold itself
    trace = None if caught is None else caught.tb_next
    while trace is not None:
        module = _module_of(trace.tb_frame)
        if module is not None and id(module) in names:
            found = module
        trace = trace.tb_next
    note_where(error, layer=names.get(id(found), "") or "(root)", kind=type(found).__name__, device=device)


def _module_of(frame: FrameType) -> nn.Module | None:
    code = frame.f_code
    if not code.co_argcount:
        return None
    first = frame.f_locals.get(code.co_varnames[0])
    return first if isinstance(first, nn.Module) else None
