"""Values as bytes, for another process: tensors as what they hold, and errors as far as they can be sent."""

import ctypes
import io
import pickle
import traceback
from typing import Any

import torch

from baechi.errors import WorkerError, note

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """A slice takes its own bytes with it, and not the whole memory that it is a slice of."""
        dense = type(value) in _PLAIN and value.layout == torch.strided
        if not dense or value.is_nested or value.is_quantized or value.is_meta:
            return NotImplemented
        held = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        raw = ctypes.string_at(held.data_ptr(), held.numel() * held.element_size()) if held.numel() else b""
        return _tensor, (raw, held.dtype, tuple(held.shape))


def packed(value: Any) -> bytes:
    """A value as bytes."""
    stream = io.BytesIO()
    _Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()


def unpacked(parcel: bytes) -> Any:
    """The value that `packed` took."""
    return pickle.loads(parcel)


def _tensor(raw: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    made = torch.empty(shape, dtype=dtype)
    if raw:
        ctypes.memmove(made.data_ptr(), raw, len(raw))
    return made


def packed_error(error: BaseException, where: str) -> bytes:
    """An error as bytes, with what its traceback says; as a `WorkerError` if it cannot be sent itself."""
    told = "".join(traceback.format_exception(error)).rstrip()
    note(error, f"{where} said:\n{told}")
    try:
        parcel = pickle.dumps((type(error), error.args, vars(error)))
        if type(unpacked_error(parcel)) is type(error):
            return parcel
    except Exception:  # what an error holds may refuse to be sent, or to be made again, in any way
        pass
    replaced = WorkerError(f"{type(error).__name__} in {where}: {error} (it cannot be sent as it is)")
    replaced.recoverable = bool(getattr(error, "recoverable", False))
    for said in getattr(error, "__notes__", ()):
        note(replaced, str(said))
    return pickle.dumps((WorkerError, replaced.args, vars(replaced)))


def unpacked_error(parcel: bytes) -> BaseException:
    """The error that `packed_error` took. Its `__init__`, which may want other arguments, is not called."""
    kind, args, state = pickle.loads(parcel)
    error: BaseException = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(state)
    return error
