"""Functional ops (glue) over several devices: `x + y` runs where `cost.anchor` says, `y` is sent there."""

import functools
import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from baechi.run.sharded.layers import run_weight_op
from baechi.run.sharded.operators import joined_in_step, run_on_shards
from baechi.run.sharded.output import ShardedOutput
from baechi.run.state.regions import why_as_written
from baechi.run.steady.arguments import plain_tensors
from baechi.run.steady.functions import FunctionFacts, function_facts
from baechi.run.step.call import Call, Reorderer
from baechi.run.step.plain_loans import lend_plain
from baechi.run.step.removable_mode import RemovableMode
from baechi.run.step.site import site_of_op
from baechi.run.step.step import Step
from baechi.torchlib.dynamo import uncompiled
from baechi.torchlib.operators.functions import (
    ASKED_BY_NAME,
    function_name,
    is_question,
    touched,
    written_in_place,
)
from baechi.torchlib.operators.table import GRADIENTS, rule_of
from baechi.torchlib.private.modes import without_subclass_function
from baechi.torchlib.shards.weight import ShardedWeight
from baechi.torchlib.tensors.pytree import tensors_in

_HOST = torch.device("cpu")


class GlueMode(RemovableMode):
    """The function mode that is on while the model's own code runs, and off inside layers.

    Args:
        step: the open step.
    """

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step
        self.weight_op_calls: Counter[tuple[str, int]] = Counter()
        """Of functional ops that read a sharded weight: calls so far, by function and weight."""
        self._answers: dict[str, torch.device] = {}
        """By place, what `x.device` answers of a tensor there: equal devices, and an object for each."""

    @uncompiled
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        facts, reorder = function_facts(func), self.step.reorder
        if facts.asks_device:
            return self._device_of(func, args)
        if "device" in kwargs and self._answers:
            kwargs = self._where_asked(kwargs)
        if reorder is not None and reorder.waiting:
            if is_question(func):
                with without_subclass_function():
                    return func(*args, **kwargs)
            if facts.rule.takes_device:
                args, kwargs = self._stay(args, kwargs)
            asked = facts.may_write or not ASKED_BY_NAME.isdisjoint(kwargs)
            writes = not facts.quiet or (asked and bool(touched(func, facts.name, args, kwargs)))
            if writes or reorder.awaits(tensors_in(args, kwargs)):
                odd = writes or not facts.plain or ShardedWeight in types or ShardedOutput in types
                given = None if odd else plain_tensors(args, kwargs)
                if given is not None and not (facts.rule.takes_device and _moves_to(given, args, kwargs)):
                    return self._in_order(reorder, func, facts, given, args, kwargs)
                reorder.launch_all(f"{facts.name} runs in the code's order")
        if types:
            if ShardedWeight in types:
                with self:  # shards are reached as layers are: by the model's code
                    made = run_weight_op(self.step.runtime, function_name(func), args, kwargs)
                if made is not NotImplemented:
                    return made
            if ShardedOutput in types:
                with self._unsited():
                    return run_on_shards(self._run_op, func, args, kwargs, self.step.backend.place_of)
        if facts.asks:
            return func(*args, **kwargs)
        if facts.short:
            there = None if self.step.sites is None else self._by_plan(func, facts.name, args, kwargs)
            return self._run(func, facts, next(self.step.turns), there, args, kwargs)
        rule = facts.rule
        if rule.takes_device:
            args, kwargs = self._stay(args, kwargs)
        if rule.query or rule.keeps_arguments:
            if rule.new_memory:
                self.step.forget(args[0])
            return func(*args, **self._gradients_there(args, kwargs))
        there = self._by_plan(func, facts.name, args, kwargs)
        return self._run(func, facts, next(self.step.turns), there, args, kwargs)

    def joined(self, values: Any) -> Any:
        """Put wholes in the place of sharded outputs."""
        with self.off(), self._unsited():  # what is asked of a tensor on the way is no op of the code
            return joined_in_step(self._run_op, values)

    def _run_op(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a functional op that the model's code does not name."""
        return self.__torch_function__(func, (), args, kwargs)

    @contextmanager
    def _unsited(self) -> Iterator[None]:
        """Within this context no op is one that the plan has by name."""
        sites, self.step.sites = self.step.sites, None
        try:
            yield
        finally:
            self.step.sites = sites

    def _device_of(self, func: Any, args: Any) -> torch.device:
        """What `x.device` answers: of all tensors the same, since the code was written for one device.

        It may compare them (`pred.device != target.device`), and the runtime brings together what meets.
        """
        with without_subclass_function():
            true: torch.device = func(*args)
        if not self.step.one_device:
            return true
        place = self.step.backend.place_of(args[0])
        known = None if true.type == "meta" else self._answers.get(place)
        if known is not None or true.type == "meta":
            return known or true
        home = self._home()
        if home is None or (true != _HOST and not self._is_ours(true)):
            return true
        answer = self._answers[place] = torch.device(home.type, home.index)
        return answer

    def _home(self) -> torch.device | None:
        """Where the inputs lie, if that is a device of the cluster or looks like one; else its first one."""
        backend, home = self.step.backend, self.step.home
        first = backend.torch_device(backend.names[0])
        if first is None or home is None:
            return first
        there = backend.torch_device(home) or _HOST
        return there if self._is_ours(there) else first

    def _where_asked(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """`zeros(3, device=x.device)` makes them where x lies, not where `x.device` says for all tensors."""
        asked = next((place for place, one in self._answers.items() if one is kwargs["device"]), None)
        if asked is None or kwargs.get("generator") is not None:
            return kwargs
        return {**kwargs, "device": self.step.backend.torch_device(asked) or _HOST}

    def _by_plan(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> str | None:
        """Where the plan runs a functional op that the code has reached, if not where its inputs say."""
        sites = self.step.sites
        if sites is None or name not in sites.names:
            return None
        usual, _ = site_of_op(self.step.backend, func, name, args, kwargs, list(tensors_in(args, kwargs)))
        if usual is None or usual not in self.step.backend.names:
            return None
        there = sites.there(name, usual)
        bound = there is None or written_in_place(func, name, args, kwargs) or why_as_written()
        return None if bound else there

    def _with_plain_arguments(
        self,
        func: Any,
        facts: FunctionFacts,
        turn: int,
        there: str | None,
        given: list[torch.Tensor],
        args: Any,
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a function whose arguments are plain; what comes back is the same as with any arguments."""
        step, backend = self.step, self.step.backend
        place: str | None = backend.place_of(given[0]) if given else None
        mixed = place not in backend.names or any(backend.place_of(tensor) != place for tensor in given)
        if mixed or there is not None:
            place, mixed = self._place(func, facts.name, there, args, kwargs, given)
        mixed = mixed or (step.boundary is not None and step.boundary.is_apart(given))
        if facts.may_write or not ASKED_BY_NAME.isdisjoint(kwargs):
            step.may_write(touched(func, facts.name, args, kwargs))
        loans = None
        if mixed and place is not None:
            (args, kwargs), loans = lend_plain(step, (args, kwargs), place, backend.finder(place))
        if place in step.bare:
            result = func(*args, **kwargs)
        else:
            result = self._at(place or backend.host, func, args, kwargs)
        if loans is not None:
            result = loans.settle(result, written=bool(facts.rule.writes))
        step.stamp(result, place, turn, renew=bool(given) and result is given[0])
        return result

    def _stay(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Drop the device of `x.to(y.device)`: the code was written for one device, so `x` stays."""
        rest, given, kwargs = list(args[1:]), kwargs, dict(kwargs)
        other = kwargs.pop("other", rest[0] if rest and isinstance(rest[0], torch.Tensor) else None)
        if other is not None:
            backend, both = self.step.backend, plain_tensors((args[0], other), {})
            if both and not any(backend.place_of(tensor) in backend.names for tensor in both):
                return args, given  # such as inputs on a device that the plan does not use
            return (args[0], other.dtype, *rest[1:]), kwargs
        device = kwargs.get("device", rest[0] if rest else None)
        if not isinstance(device, (str, torch.device)) or not self._is_ours(torch.device(device)):
            return args, kwargs
        if "device" in kwargs:
            del kwargs["device"]
        else:
            kwargs |= dict(zip(("dtype", "non_blocking", "copy"), rest[1:], strict=False))
            rest = []
        if kwargs.get("dtype", True) is None:
            del kwargs["dtype"]
        if not rest and not kwargs:
            rest = [args[0].dtype]
        return (args[0], *rest), kwargs

    def _place(
        self, func: Any, name: str, there: str | None, args: Any, kwargs: Any, given: list[torch.Tensor]
    ) -> tuple[str | None, bool]:
        if there is not None:
            return there, True
        return site_of_op(self.step.backend, func, name, args, kwargs, given)

    def _gradients_there(self, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Bring the gradients given to `backward` or `grad` to the devices of their tensors."""
        there = {}
        for key in GRADIENTS:
            grads = kwargs.get(key)
            if grads is not None and args:
                pairs = itertools.zip_longest(_in_tuple(args[0]), _in_tuple(grads))
                brought = tuple([self._beside(output, grad) for output, grad in pairs])
                there[key] = brought[0] if isinstance(grads, torch.Tensor) else brought
        return {**kwargs, **there} if there else kwargs

    def _beside(self, output: Any, grad: Any) -> Any:
        if not isinstance(output, torch.Tensor) or not isinstance(grad, torch.Tensor):
            return grad
        place = self.step.backend.place_of(output)
        return self.step.bring(grad, place) if place in self.step.backend.names else grad

    def _is_ours(self, device: torch.device) -> bool:
        ours = [self.step.backend.torch_device(name) for name in self.step.backend.names]
        return any(
            own is not None and device in (own, torch.device(own.type)) for own in ours if own != _HOST
        )

    def _in_order(
        self,
        reorder: Reorderer,
        func: Any,
        facts: FunctionFacts,
        given: list[torch.Tensor],
        args: Any,
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a plain function while something waits: it waits, too, if it reads what is deferred."""
        turn = next(self.step.turns)
        there = self._by_plan(func, facts.name, args, kwargs)
        run = functools.partial(self._run, func, facts, turn, there)
        place, mixed = self._place(func, facts.name, there, args, kwargs, given)
        device = self.step.backend.kernel_device(place) if mixed and place is not None else None
        return reorder.function(Call(facts.name, run, args, kwargs, place, turn), func, device, given)

    def _run(
        self, func: Any, facts: FunctionFacts, turn: int, there: str | None, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        given = plain_tensors(args, kwargs) if facts.short and self.step.short else None
        if given is not None:
            return self._with_plain_arguments(func, facts, turn, there, given, args, kwargs)
        return self._with_any_arguments(func, facts.name, turn, there, args, kwargs)

    def _with_any_arguments(
        self, func: Any, name: str, turn: int, there: str | None, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        self.step.full.append(name)
        self.step.backend.spend("full_call", self.step.backend.host)
        given = list(tensors_in(args, kwargs))
        rule = rule_of(name)
        place, mixed = self._place(func, name, there, args, kwargs, given)
        mixed = mixed or (self.step.boundary is not None and self.step.boundary.is_apart(given))
        self.step.may_write(touched(func, name, args, kwargs))
        if mixed and place is not None:
            (args, kwargs), loans = self.step.lend((args, kwargs), place)
            result = loans.settle(self._at(place, func, args, kwargs), written=bool(rule.writes))
        else:
            result = self._at(place or self.step.backend.host, func, args, kwargs)
        written = bool(given) and result is given[0]
        if not rule.moves or self._stayed(result, place):
            self.step.stamp(result, place, turn, renew=written)
        return result

    def _at(self, place: str, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        with self.step.backend.at(place, "") as note:
            self.step.backend.spend("functional_op", place)
            result = func(*args, **kwargs)
            if note is not None:
                note(result)
        return result

    def _stayed(self, result: Any, place: str | None) -> bool:
        """Whether a result of `to` is still on its planned device, one of several that share a GPU."""
        backend = self.step.backend
        unsaid = place in backend.names and backend.place_of(result) not in backend.names
        return unsaid and bool(backend.torch_device(str(place)) == result.device)


def _in_tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


def _moves_to(given: list[torch.Tensor], args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether `x.to(...)` names a device, or another tensor."""
    named = any(isinstance(value, (str, torch.device)) for value in (*args, *kwargs.values()))
    return named or len(given) > 1
