"""`torch.toy`: what torch looks for under the name of a device type, and two cells of recurrent layers."""

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import library

_registered: list[Any] = []


def register() -> None:
    """Let torch know the device type under its name."""
    torch.utils.rename_privateuse1_backend("toy")
    module = types.ModuleType("torch.toy")
    module._initialized = True  # type: ignore[attr-defined]  # checkpointing asks
    for function in _FUNCTIONS:
        setattr(module, function.__name__, function)
    sys.modules["torch.toy"] = module
    torch._register_device_module("toy", module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    operators = library.Library("aten", "IMPL")
    for kernel in (
        _thnn_fused_lstm_cell,
        _thnn_fused_lstm_cell_backward_impl,
        _thnn_fused_gru_cell,
        _thnn_fused_gru_cell_backward,
        histc,
    ):
        operators.impl(kernel.__name__, kernel, "PrivateUse1")
    _registered.append(operators)  # what it registered goes with it


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    return int(torch.ops.toy.devices())


def current_device() -> int:
    return torch.accelerator.current_device_index()


def set_device(device: Any) -> None:
    torch.accelerator.set_device_index(_index(device))


@contextmanager
def device(index: Any) -> Iterator[None]:
    before = current_device()
    set_device(index)
    try:
        yield
    finally:
        set_device(before)


def synchronize(device: Any = None) -> None:
    torch.accelerator.synchronize(_index(device))


def current_stream(device: Any = None) -> torch.Stream:
    return torch.accelerator.current_stream(_index(device))


def get_rng_state(device: Any = None) -> torch.Tensor:
    return torch.ops.toy.rng_state(_index(device))


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    torch.ops.toy.set_rng_state(_index(device), new_state)


def manual_seed(seed: int) -> None:
    torch.ops.toy.seed(current_device(), _signed(seed))


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        torch.ops.toy.seed(index, _signed(seed))


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def get_device_name(device: Any = None) -> str:
    return "Toy"


def get_device_properties(device: Any = None) -> Any:
    return types.SimpleNamespace(name="Toy", uuid=f"toy-{_index(device)}", L2_cache_size=2**16)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    return torch.accelerator.get_memory_info(_index(device))


def _sleep(cycles: int) -> None:
    torch.ops.toy.sleep(cycles * 1e-9)


def can_device_access_peer(source: Any, target: Any) -> bool:
    return True


_FUNCTIONS = (
    is_available, is_initialized, _is_in_bad_fork, device_count, current_device, set_device, device,
    synchronize, current_stream, get_rng_state, set_rng_state, manual_seed, manual_seed_all,
    get_amp_supported_dtype, get_device_name, get_device_properties, mem_get_info, can_device_access_peer,
    _sleep,
)  # fmt: skip


def _signed(seed: int) -> int:
    """The same 64 bits as operators take them: a seed that torch draws may be above their largest integer."""
    return (seed + 2**63) % 2**64 - 2**63


def _index(device: Any) -> int:
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return current_device() if index is None else index


# --- integers, which a GPU counts and the CPU does not


def histc(values: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    made = torch.empty(bins, dtype=torch.float64, device=values.device)
    torch.ops.aten.histc.out(values.double(), bins, min, max, out=made)
    return made.to(values.dtype)


# --- cells that torch fuses on every device but the CPU


def _thnn_fused_lstm_cell(
    input_gates: Any, hidden_gates: Any, cx: Any, input_bias: Any = None, hidden_bias: Any = None
) -> Any:
    gates = _sum(input_gates, hidden_gates, input_bias, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _thnn_fused_lstm_cell_backward_impl(
    grad_hy: Any, grad_cy: Any, cx: Any, cy: Any, workspace: Any, has_bias: bool
) -> Any:
    i, f, g, o = workspace.chunk(4, 1)
    gcx = cy.tanh()
    grad_o = torch.zeros_like(cy) if grad_hy is None else grad_hy * gcx
    grad_c = torch.zeros_like(cy) if grad_hy is None else grad_hy * o * (1 - gcx * gcx)
    grad_c = grad_c if grad_cy is None else grad_c + grad_cy
    grad_gates = torch.cat(
        [
            grad_c * g * i * (1 - i),
            grad_c * cx * f * (1 - f),
            grad_c * i * (1 - g * g),
            grad_o * o * (1 - o),
        ],
        1,
    )
    return grad_gates, grad_c * f, grad_gates.sum(0) if has_bias else None


def _thnn_fused_gru_cell(
    input_gates: Any, hidden_gates: Any, hx: Any, input_bias: Any = None, hidden_bias: Any = None
) -> Any:
    given, hidden = _sum(input_gates, input_bias), _sum(hidden_gates, hidden_bias)
    (ir, iz, inew), (hr, hz, hn) = given.chunk(3, 1), hidden.chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (inew + r * hn).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, hn], 1)


def _thnn_fused_gru_cell_backward(grad_hy: Any, workspace: Any, has_bias: bool) -> Any:
    r, z, n, hx, hn = workspace.chunk(5, 1)
    grad_z = grad_hy * (hx - n) * (1 - z) * z
    grad_n = grad_hy * (1 - z) * (1 - n * n)
    grad_r = grad_n * hn * (1 - r) * r
    given = torch.cat([grad_r, grad_z, grad_n], 1)
    hidden = torch.cat([grad_r, grad_z, grad_n * r], 1)
    biases = (given.sum(0), hidden.sum(0)) if has_bias else (None, None)
    return given, hidden, grad_hy * z, *biases


def _sum(*parts: Any) -> Any:
    first, *others = [part for part in parts if part is not None]
    for part in others:
        first = first + part
    return first
