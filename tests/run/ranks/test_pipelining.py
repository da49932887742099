"""A witness that is not ours: the same chain, cuts and order by `torch.distributed.pipelining`."""

import pytest
import torch
from run.ranks.pipelining import ORDERS, Trained, both, hosts_time, plain
from run.ranks.processes import Ranks

CLOSE = {"rtol": 0.0, "atol": 1e-12}


def losses_of(found: list[Trained]) -> torch.Tensor:
    """Of torch's, only the last rank knows them."""
    return torch.tensor(found[-1].losses, dtype=torch.float64)


def grads_of(found: list[Trained]) -> list[dict[str, torch.Tensor]]:
    """By step, of all ranks; each weight is on one."""
    steps = []
    for each in zip(*[one.grads for one in found], strict=True):
        whole = {name: grad for one in each for name, grad in one.items()}
        assert len(whole) == sum(map(len, each))
        steps.append(whole)
    return steps


@pytest.mark.full
@pytest.mark.parametrize("order", ORDERS)
def test_as_torchs_own_pipelines(two: Ranks, order: str) -> None:
    """Losses and gradients of three steps; and those of plain torch on the whole batch."""
    found = two(both, order)
    for one in found:
        assert not isinstance(one, Exception), one
    ours, torchs = [one[0] for one in found], [one[1] for one in found]
    alone = plain()
    assert ours[0].losses == ours[1].losses
    assert len(alone.losses) == len(set(alone.losses)) == 3
    for other in (torchs, [alone]):
        torch.testing.assert_close(losses_of(ours), losses_of(other), **CLOSE)
        for here, there in zip(grads_of(ours), grads_of(other), strict=True):
            assert here.keys() == there.keys()
            for name, grad in here.items():
                assert grad.abs().max() > 0, name
                torch.testing.assert_close(grad, there[name], **CLOSE)


@pytest.mark.nightly
@pytest.mark.parametrize("order", ORDERS)
def test_hosts_time(two: Ranks, order: str) -> None:
    """Figures of `docs/hosts.md`; they are told, not judged."""
    for one in two(hosts_time, order):
        assert not isinstance(one, Exception), one
        print(f"{order}, rank {one['rank']}: a task {one['baechi_us']:.0f} us, torch's {one['torch_us']:.0f}")
        assert one["baechi_us"] > 0 < one["torch_us"]
