"""`RankScheduler` in two processes that meet: each has its device, and together they are the whole."""

import multiprocessing
from pathlib import Path

import pytest
import torch
from dispatch.workers import ranked

pytestmark = pytest.mark.full


@pytest.mark.timeout(120)
def test_two_processes_are_the_whole(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    arguments = str(tmp_path / "meeting"), str(tmp_path / "result")
    started = [context.Process(target=ranked.run, args=(rank, *arguments)) for rank in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0, 0]
    parts, grads = torch.load(arguments[1])
    net, x = ranked.model(), ranked.rows().double()
    expected = net(x)
    torch.testing.assert_close(torch.stack(parts, 1).flatten(0, 1), expected)
    expected.square().sum().backward()
    torch.testing.assert_close(grads, torch.cat([weight.grad.flatten() for weight in net.parameters()]))
