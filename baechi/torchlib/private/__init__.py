"""Every private name of torch that baechi uses, and every function of torch that it replaces.

In:    torch, from 2.9 on.
Out:   the same functions and classes under public names: C functions stay C functions.
Start: `lookup` (what happens where torch lacks a name), then `patches` (what is replaced).

Private is what begins with one underscore: a module of torch, a name in one, and an attribute of torch's
objects (tensors, storages, autograd nodes, modules, operators). Names of Python's own protocols (`__get__`)
and of operators (`_foreach_add_`) are not. `tests/torchlib/test_private.py` proves that no other file has
any, and that no other file replaces something of torch.
"""
