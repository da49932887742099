"""`torchrun -m baechi links`: links between processes, with their hosts; all of the file or none."""

from pathlib import Path

import pytest
from run.ranks.models import built
from run.ranks.processes import Ranks
from run.ranks.scripts import run_script

import baechi
from baechi.measure import rank_links as measured
from baechi.records.device import Link


def found_links(rounds: int) -> str:
    return measured.rank_links(sizes=(1024, 65536), rounds=rounds).to_json()


def test_all_pairs_of_four_ranks(four: Ranks) -> None:
    """Every process has the same cluster, with a link for each ordered pair, and one host."""
    found = four(found_links, 2)
    assert isinstance(found[0], str), found
    assert set(found) == {found[0]}
    cluster = baechi.Cluster.from_json(found[0])
    names = tuple([f"rank{rank}/cpu" for rank in range(4)])
    assert cluster.names == names
    assert cluster.ranks == (0, 1, 2, 3)
    assert set(cluster.links) == {(a, b) for a in names for b in names if a != b}
    assert all(link.bytes_per_s > 0 for link in cluster.links.values())
    assert [host.devices for host in cluster.hosts] == [names]


def planned_with_links() -> tuple[float, tuple[str, ...]]:
    """Train a step by a plan for the links that were measured."""
    cluster = measured.rank_links(sizes=(1024, 65536), rounds=1)
    model, batch = built("towers")
    data = batch()
    baechi.distribute(model, data, cluster=cluster, placer="even", microbatches=2)
    loss = model(**data)
    loss.backward()
    plan = baechi.plan_of(model)
    hosts = (plan.plan if isinstance(plan, baechi.Pipeline) else plan).cluster.hosts
    return loss.item(), hosts[0].devices


def test_a_plan_with_them_runs(two: Ranks) -> None:
    model, batch = built("towers")
    loss = model(**batch()).item()
    for found in two(planned_with_links):
        assert found == (pytest.approx(loss, abs=1e-12), ("rank0/cpu", "rank1/cpu"))


def test_hosts_and_the_links_between_them() -> None:
    """Ranks of two machines: a link inside of each is that of its slowest pair, and so between them."""
    names = [baechi.Cluster.virtual(4, ranks=True).devices[k] for k in range(4)]
    near, nearer, far, farther = [Link(k * 1e-6, 1e9) for k in (2, 1, 50, 60)]
    pairs = {(0, 1): near, (2, 3): nearer, (0, 2): far, (0, 3): far, (1, 2): farther, (1, 3): far}
    cluster = measured._cluster(names, ["one", "one", "two", "two"], pairs)
    assert [(host.name, host.link) for host in cluster.hosts] == [("one", near), ("two", nearer)]
    assert cluster.link == farther
    a, b, _, d = cluster.names
    assert (cluster.link_between(b, a), cluster.link_between(d, a)) == (near, far)
    with pytest.raises(baechi.RankError, match="do not follow each other: one, two, one, two"):
        measured._cluster(names, ["one", "two"] * 2, pairs)


@pytest.mark.full
def test_a_file_is_written_by_the_first_rank(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    ended = run_script(2, ["-m", "baechi", "links", "-o", file], 60)
    assert [one.code for one in ended] == [0, 0], ended
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]
    assert baechi.Cluster.load(file).names == ("rank0/cpu", "rank1/cpu")


@pytest.mark.full
@pytest.mark.parametrize("what", ["raises", "Ctrl-C", "killed"])
def test_no_half_file_is_left(tmp_path: Path, what: str) -> None:
    """The file of before stays as it was, and nothing is beside it."""
    file = tmp_path / "cluster.json"
    file.write_text("as before")
    script = Path(__file__).with_name("broken_links.py")
    ended = run_script(2, [script, what, "links", "-o", file], 30)
    assert all(one.code for one in ended), ended
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]
    assert file.read_text() == "as before"
    said = {"raises": "the card fell out", "Ctrl-C": "KeyboardInterrupt", "killed": "process was killed"}
    assert said[what] in ended[0].said
